# The kernels of cpu/ for several levels of instructions in one library; the best one that the processor has is taken when
# the first kernel runs (core/dispatch/cpu_levels.cpp). Everything else in the library is compiled for the compiler's usual
# processor, x86-64 with SSE2.
#
# A level's files are compiled with its instructions, in a namespace of its own (cpu_v3, ...), and joined into one object.
# The trouble with that is in what they share with the rest: an inline function of the standard library or of our headers
# that the compiler did not inline is in every object that calls it, and a linker keeps one of them for all; it may be the
# one with AVX-512. So cmake/join_level.cmake dissolves the groups by which linkers recognise such functions and makes every
# function of the level local to its object. Only the one that registers its kernels can be seen from outside.
set(QUIPU_CPU_LEVELS "" CACHE STRING "Levels to compile cpu/ for: some of v2 v3 v4 v4_bf16, or baseline; empty: all")

# Tuned for the processors that a level is the best of; what a kernel computes depends on -march alone. Those with bf16
# pairs are quick with vectors of 512 bits throughout: activations take 0.55 of the time. Older ones lower their clock.
set(quipu_level_flags_v2 -march=x86-64-v2)
set(quipu_level_flags_v3 -march=x86-64-v3)
set(quipu_level_flags_v4 -march=x86-64-v4 -mtune=skylake-avx512)
set(quipu_level_flags_v4_bf16 -march=x86-64-v4 -mavx512bf16 -mtune=skylake-avx512 -mprefer-vector-width=512)
set(quipu_level_flags_native "")  # quipu_options has -march=native
set(quipu_level_flags_baseline "")

# quipu_levels_missing(OUTPUT): why cpu/ cannot be compiled for several levels here; empty where it can.
function(quipu_levels_missing output)
  set(reason "")
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(reason "no levels are known for ${CMAKE_SYSTEM_PROCESSOR}")
  elseif(QUIPU_SANITIZE)
    set(reason "sanitizers register each object where it is loaded")
  else()
    find_program(QUIPU_JOINER NAMES ld.bfd ld)
    find_program(QUIPU_LOCALIZER NAMES objcopy llvm-objcopy)
    mark_as_advanced(QUIPU_JOINER QUIPU_LOCALIZER)
    if(QUIPU_JOINER)
      execute_process(COMMAND ${QUIPU_JOINER} --help OUTPUT_VARIABLE help ERROR_QUIET)
    endif()
    if(NOT QUIPU_LOCALIZER OR NOT CMAKE_OBJDUMP OR NOT help MATCHES "force-group-allocation")
      set(reason "ld with --force-group-allocation, objcopy and objdump are needed (GNU binutils has them)")
    endif()
  endif()
  set(${output} "${reason}" PARENT_SCOPE)
endfunction()

if(QUIPU_NATIVE)
  set(quipu_cpu_levels native)
elseif(QUIPU_CPU_LEVELS STREQUAL "baseline")
  set(quipu_cpu_levels baseline)
else()
  quipu_levels_missing(reason)
  set(quipu_cpu_levels ${QUIPU_CPU_LEVELS})
  if(NOT reason AND NOT quipu_cpu_levels)
    set(quipu_cpu_levels v2 v3 v4 v4_bf16)
  elseif(reason AND quipu_cpu_levels)
    message(FATAL_ERROR "QUIPU_CPU_LEVELS is '${QUIPU_CPU_LEVELS}', but ${reason}")
  elseif(reason)
    set(quipu_cpu_levels baseline)
    message(STATUS "quipu: cpu/ is compiled for the usual processor alone: ${reason}")
  endif()
  foreach(level IN LISTS quipu_cpu_levels)
    if(NOT level MATCHES "^(v2|v3|v4|v4_bf16|baseline)$" OR (level STREQUAL "baseline" AND NOT reason))
      message(FATAL_ERROR "QUIPU_CPU_LEVELS is '${QUIPU_CPU_LEVELS}', but must be some of v2, v3, v4 and v4_bf16, or baseline alone")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES quipu_cpu_levels)
  list(SORT quipu_cpu_levels)  # from the least to the best
endif()
message(STATUS "quipu: levels of the CPU's kernels: ${quipu_cpu_levels}")

# quipu_add_level(TARGET LEVEL SOURCES...): an object with the kernels of one level. `quipu_level_object_LEVEL` is its file.
function(quipu_add_level target level)
  set(objects quipu_cpu_${level})
  set(folder ${PROJECT_BINARY_DIR}/levels)
  quipu_write_register_kernels(register_cpu_level_${level} ${folder}/register_cpu_level_${level}.cpp ${ARGN})
  if(level MATCHES "^(native|baseline)$")  # the same instructions as everything else
    target_sources(${target} PRIVATE ${ARGN} ${folder}/register_cpu_level_${level}.cpp)
    return()
  endif()
  add_library(${objects} OBJECT ${ARGN} ${folder}/register_cpu_level_${level}.cpp)
  target_compile_features(${objects} PRIVATE cxx_std_20)
  target_compile_definitions(${objects} PRIVATE on_cpu=cpu_${level})
  target_include_directories(${objects} PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_link_libraries(${objects} PRIVATE quipu_options)
  target_compile_options(${objects} PRIVATE ${quipu_level_flags_${level}} -fno-lto)  # joined as machine code
  set_target_properties(${objects} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
  if(BUILD_SHARED_LIBS)
    set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    quipu_hide(${objects})
  endif()
  set(joined ${folder}/cpu_${level}.o)
  add_custom_command(OUTPUT ${joined}
    COMMAND ${CMAKE_COMMAND} -Dlevel=${level} -Dlinker=${QUIPU_JOINER} -Dobjcopy=${QUIPU_LOCALIZER} -Dobjdump=${CMAKE_OBJDUMP}
            -Doutput=${joined} -P ${PROJECT_SOURCE_DIR}/cmake/join_level.cmake -- $<TARGET_OBJECTS:${objects}>
    DEPENDS $<TARGET_OBJECTS:${objects}> ${PROJECT_SOURCE_DIR}/cmake/join_level.cmake
    COMMAND_EXPAND_LISTS VERBATIM COMMENT "Joining the kernels of level ${level}")
  set_source_files_properties(${joined} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${target} PRIVATE ${joined})
  set(quipu_level_object_${level} ${joined} PARENT_SCOPE)
endfunction()

# quipu_write_levels(OUTPUT): the list of levels that core/dispatch/cpu_levels.h declares.
function(quipu_write_levels output)
  set(declarations "")
  set(entries "")
  foreach(level IN LISTS quipu_cpu_levels)
    string(APPEND declarations "void register_cpu_level_${level}();\n")
    string(APPEND entries "      {\"${level}\", register_cpu_level_${level}},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT
"// Written by cmake/levels.cmake.
#include \"quipu/core/dispatch/cpu_levels.h\"
namespace quipu::detail {
${declarations}
std::span<const CpuLevel> cpu_levels() {
  static constexpr CpuLevel levels[] = {
${entries}  };
  return levels;
}
}  // namespace quipu::detail
" @ONLY)
endfunction()
