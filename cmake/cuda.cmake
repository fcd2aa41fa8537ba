# How cuda/ is built. QUIPU_CUDA=ON compiles it with nvcc, EMULATE compiles the same files with the host compiler for
# cuda/emulator/, OFF leaves it out. The default is ON where a toolkit and a driver are found: a first build is quick
# where no GPU could be used.
find_program(QUIPU_NVCC nvcc HINTS /usr/local/cuda/bin)
mark_as_advanced(QUIPU_NVCC)
set(quipu_cuda_default OFF)
if(QUIPU_NVCC AND (EXISTS /proc/driver/nvidia/version OR EXISTS /usr/lib/wsl/lib/libcuda.so))
  set(quipu_cuda_default ON)
endif()
set(QUIPU_CUDA ${quipu_cuda_default} CACHE STRING "CUDA kernels: ON (nvcc), EMULATE (host compiler) or OFF")
set_property(CACHE QUIPU_CUDA PROPERTY STRINGS ON EMULATE OFF)
if(NOT QUIPU_CUDA MATCHES "^(ON|EMULATE|OFF)$")
  message(FATAL_ERROR "QUIPU_CUDA is '${QUIPU_CUDA}', but it must be ON, EMULATE or OFF")
endif()

# quipu_add_kernels(TARGET FILES...): adds .cu files to a target, by nvcc or for the emulator.
include(${CMAKE_CURRENT_LIST_DIR}/kernels.cmake)

if(QUIPU_CUDA STREQUAL "ON")
  if(NOT QUIPU_NVCC)
    message(FATAL_ERROR "QUIPU_CUDA=ON, but no nvcc is in PATH or /usr/local/cuda/bin. QUIPU_CUDA=EMULATE needs none.")
  endif()
  set(CMAKE_CUDA_COMPILER ${QUIPU_NVCC} CACHE FILEPATH "nvcc")
  # Machine code for A100, RTX 30, RTX 40, H100 and RTX 50, and PTX, which drivers compile for cards between and after
  # them: that of sm_90 for B200. CUDAARCHS=native in the environment builds for the card of this machine alone.
  if(NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES "80-real;86-real;89-real;90;120" CACHE STRING "Cards to build for")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  option(QUIPU_NVTX "Under a profiler, operators are ranges of NVTX; needs its headers, which the toolkit has" ON)
  find_path(QUIPU_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
elseif(QUIPU_CUDA STREQUAL "EMULATE")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    message(FATAL_ERROR "QUIPU_CUDA=EMULATE needs g++: others report a vector's load or store as a call of memcpy or in parts, "
                        "so that accesses could not be counted. Set CMAKE_CXX_COMPILER to g++.")
  endif()
  if(BUILD_SHARED_LIBS)
    message(FATAL_ERROR "QUIPU_CUDA=EMULATE needs a static library: shared arrays of kernels are found in the program")
  endif()
  if(QUIPU_SANITIZE MATCHES "thread")
    message(FATAL_ERROR "QUIPU_CUDA=EMULATE and the thread sanitizer exclude each other: both want the same hooks")
  endif()
  set(QUIPU_EMULATOR_INCLUDE ${PROJECT_SOURCE_DIR}/cuda/emulator/include)
  find_package(Boost 1.71 REQUIRED COMPONENTS context)
  file(GLOB_RECURSE emulator_sources CONFIGURE_DEPENDS cuda/emulator/*.cpp)
  add_library(quipu_emulator OBJECT ${emulator_sources})
  # Never instrumented: it switches stacks, and it is what instrumented kernels call.
  target_compile_options(quipu_emulator PRIVATE -O2 -g1 -Wall -Wextra -Wconversion -Wno-unused-parameter
                                                $<$<BOOL:${QUIPU_WERROR}>:-Werror> $<$<BOOL:${QUIPU_NATIVE}>:-march=native>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(quipu_emulator PRIVATE -Wno-restrict -Wno-uninitialized -Wno-maybe-uninitialized)  # in its own headers
  endif()
  target_include_directories(quipu_emulator PRIVATE cuda/emulator/include)
  target_link_libraries(quipu_emulator PRIVATE Boost::context Eigen3::Eigen Threads::Threads)
endif()

set(quipu_cuda_kernels "")
if(NOT QUIPU_CUDA STREQUAL "OFF")
  file(GLOB_RECURSE quipu_cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.cu)
endif()

# quipu_use_cuda(TARGET): the library's own kernels and what they need.
function(quipu_use_cuda target)
  if(QUIPU_CUDA STREQUAL "OFF")
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/runtime/*.cpp)
  target_sources(${target} PRIVATE ${sources})
  if(QUIPU_CUDA STREQUAL "EMULATE")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:quipu_emulator>)
    set_source_files_properties(${sources} PROPERTIES COMPILE_DEFINITIONS QUIPU_EMULATE
                                                      INCLUDE_DIRECTORIES ${QUIPU_EMULATOR_INCLUDE})
    target_link_libraries(${target} PRIVATE Boost::context)
    target_include_directories(${target} INTERFACE  # for host files of a user that call the runtime
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/quipu/cuda/emulator/include>)
  else()
    target_link_libraries(${target} PRIVATE CUDA::cudart_static CUDA::cublas)
    if(QUIPU_NVTX AND QUIPU_NVTX_INCLUDE)
      set_source_files_properties(${PROJECT_SOURCE_DIR}/core/report/profiler.cpp PROPERTIES
                                  COMPILE_DEFINITIONS QUIPU_NVTX COMPILE_OPTIONS "-isystem${QUIPU_NVTX_INCLUDE}")
      target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
    endif()
  endif()
  quipu_add_kernels(${target} ${quipu_cuda_kernels})
endfunction()

# Kernels include quipu/cuda/launch.h, here and where the package is installed.
if(NOT QUIPU_CUDA STREQUAL "OFF")
  install(FILES cuda/launch.h cuda/ptx.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quipu/cuda)
  install(FILES cmake/kernels.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quipu)
endif()
if(QUIPU_CUDA STREQUAL "EMULATE")
  install(DIRECTORY cuda/emulator DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quipu/cuda FILES_MATCHING PATTERN "*.h")
endif()

# quipu_check_sass(NAME TARGET SOURCES...): a test that holds the machine code of the target's kernels against the
# expectations in their sources; --all among the sources wants some in every file.
function(quipu_check_sass name target)
  set(tools ${PROJECT_BINARY_DIR}/sass_tools)
  quipu_add_test(sass/${name} ${PROJECT_SOURCE_DIR}/scripts/sass_check --fetch ${tools} ${ARGN} $<TARGET_OBJECTS:${target}>)
  set_tests_properties(sass/${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
