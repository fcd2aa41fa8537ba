# BUILD_SHARED_LIBS=ON: a shared library with a version, in which only what programs may use can be seen.
#
# Everything is compiled with hidden visibility, but for what public headers declare: shared/quipu in the build directory has
# a header of the same name for each of them, which includes it under default visibility and is found first. So no header
# carries a macro, and one that becomes public is exported. Kernels, internal headers, Eigen, {fmt} and json are hidden then.
# What is left are templates of the standard library, which asks for default visibility itself: the linker's version script
# keeps nothing that is not in `quipu`.
#
# Tests and benchmarks call functions that are hidden. They link quipu_internals: the same objects as a static library, and
# in a static build the library itself. No program may link both, or it would have two ledgers and two tapes.
set(quipu_soversion ${PROJECT_VERSION_MAJOR})
if(quipu_soversion EQUAL 0)  # then programs may have to be changed for a new second number
  string(APPEND quipu_soversion .${PROJECT_VERSION_MINOR})
endif()
set(quipu_version_script ${PROJECT_BINARY_DIR}/shared/exports.map)

if(BUILD_SHARED_LIBS)
  file(GLOB_RECURSE written RELATIVE ${PROJECT_BINARY_DIR}/shared/quipu ${PROJECT_BINARY_DIR}/shared/quipu/*.h)
  foreach(header IN LISTS written)
    if(NOT header IN_LIST quipu_public_headers)
      file(REMOVE ${PROJECT_BINARY_DIR}/shared/quipu/${header})
    endif()
  endforeach()
  foreach(header IN LISTS quipu_public_headers)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/shared/quipu/${header} CONTENT
"// Written by cmake/shared.cmake.
#pragma once
#pragma GCC visibility push(default)
#include \"include/quipu/${header}\"
#pragma GCC visibility pop
" @ONLY)
  endforeach()
  # Names as the compiler mangles them: functions, constants and variables in quipu, with const, & or && behind a member
  # function; static locals of inline functions (ZZ) and the guards of variables (GV); tables, types and their names (T.);
  # thread-local variables (TH, TW); functions behind a second base (Th, Tv, Tc).
  file(CONFIGURE OUTPUT ${quipu_version_script} CONTENT
"{
  global:
    _ZN5quipu*; _ZN[KRO]5quipu*; _ZNK[RO]5quipu*;
    _ZZN5quipu*; _ZZNK5quipu*; _ZGVN5quipu*; _ZGVZN5quipu*; _ZGVZNK5quipu*;
    _ZT[VTIS]N5quipu*; _ZT[HW]N5quipu*; _ZT[hvc]*_N5quipu*; _ZT[hvc]*_NK5quipu*;
  local:
    *;
};
" @ONLY)
endif()

# quipu_hide(TARGET): its objects show what public headers declare. Without preemption of that, which no program needs, calls
# of our own public functions can be inlined.
function(quipu_hide target)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
  target_include_directories(${target} BEFORE PRIVATE ${PROJECT_BINARY_DIR}/shared ${PROJECT_BINARY_DIR})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>)
endfunction()

# quipu_share(TARGET): version, exports and quipu_internals of the library.
function(quipu_share target)
  if(NOT BUILD_SHARED_LIBS)
    add_library(quipu_internals ALIAS ${target})
    return()
  endif()
  quipu_hide(${target})
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${quipu_soversion}
                                             LINK_DEPENDS ${quipu_version_script})
  target_link_options(${target} PRIVATE LINKER:--version-script=${quipu_version_script})
  add_library(quipu_internals STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${target}>)
  add_dependencies(quipu_internals ${target})  # which joins the levels
  foreach(level IN LISTS quipu_cpu_levels)
    target_sources(quipu_internals PRIVATE ${quipu_level_object_${level}})
  endforeach()
  set_target_properties(quipu_internals PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(quipu_internals PUBLIC cxx_std_20)
  target_include_directories(quipu_internals PUBLIC ${PROJECT_BINARY_DIR}/include)
  get_target_property(linked ${target} LINK_LIBRARIES)
  target_link_libraries(quipu_internals PRIVATE ${linked})
endfunction()
