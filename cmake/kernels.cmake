# quipu_add_kernels(TARGET FILES...): adds .cu files to a target, compiled as QUIPU_CUDA says: by nvcc, or by the host
# compiler for the emulator (cuda/emulator/README.md). Used in the tree and by find_package(quipu).
#
# An emulated kernel is instrumented: -fsanitize=thread makes the compiler call a hook at every load and store, and
# -fsanitize=bounds one at every index out of an array's bounds; the emulator provides the hooks, and no sanitizer library
# is linked. Scalar replacement would split vector accesses before they are seen, and vectorising would merge what a
# device does not merge.
set(QUIPU_EMULATED_FLAGS -O2 -g1 -gdwarf-4 -fsanitize=thread -fsanitize=bounds -fno-tree-sra -fno-tree-vectorize
                         -fno-tree-slp-vectorize -Wall -Wextra -Wno-unused-parameter -Wno-unknown-pragmas)
# nvcc contracts a * b + c to one fused multiply-add, and so does the host compiler here where the processor has one:
# kernels that promise equal bits must not depend on which product a compiler takes. QUIPU_NATIVE=OFF leaves it out.
if(QUIPU_NATIVE AND QUIPU_CUDA STREQUAL "EMULATE")
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -march=native)
  check_cxx_source_compiles("#ifdef __FMA__\nint main() {}\n#endif" QUIPU_PROCESSOR_HAS_FMA)
  unset(CMAKE_REQUIRED_FLAGS)
  if(QUIPU_PROCESSOR_HAS_FMA)
    list(APPEND QUIPU_EMULATED_FLAGS -mfma -ffp-contract=fast)
  endif()
endif()
set(QUIPU_NVCC_FLAGS -std=c++20 --expt-relaxed-constexpr --extended-lambda -lineinfo)

function(quipu_add_kernels target)
  if(NOT ARGN)
    return()
  endif()
  if(QUIPU_CUDA STREQUAL "ON")
    target_sources(${target} PRIVATE ${ARGN})
    set_target_properties(${target} PROPERTIES CUDA_STANDARD_REQUIRED OFF)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${QUIPU_NVCC_FLAGS};-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>")
    if(QUIPU_WERROR)
      target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror;all-warnings>")
    endif()
    return()
  endif()
  set(emulated "")
  foreach(file IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    # Two folders may each have a file of one name: the path from here is the key.
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE name)
    string(REPLACE "../" "up/" name ${name})
    cmake_path(REMOVE_EXTENSION name LAST_ONLY)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/emulated/${target}/${name}.emulated.cpp)
    # A relative path, so that a compiler cache knows the file again in another clone.
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${folder} OUTPUT_VARIABLE included)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${included}\"\n" @ONLY)
    list(APPEND emulated ${source})
  endforeach()
  add_library(${target}_kernels OBJECT ${emulated})
  target_compile_features(${target}_kernels PRIVATE cxx_std_20)
  target_compile_options(${target}_kernels PRIVATE ${QUIPU_EMULATED_FLAGS})
  if(QUIPU_WERROR)
    target_compile_options(${target}_kernels PRIVATE -Werror)
  endif()
  target_compile_definitions(${target}_kernels PRIVATE QUIPU_EMULATE)
  target_include_directories(${target}_kernels PRIVATE ${QUIPU_EMULATOR_INCLUDE}
                             $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_kernels>)
endfunction()
