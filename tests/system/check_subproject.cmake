# The tree where somebody else builds it, as a part of their project or alone without a preset: no warning of a compiler
# that we do not know stops them, and a part builds the library alone. Only configures. Takes source_dir, scratch_dir and
# compiler.
file(REMOVE_RECURSE ${scratch_dir})
file(WRITE ${scratch_dir}/other/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(other LANGUAGES CXX)
add_subdirectory(${source_dir} quipu)
add_executable(other main.cpp)
target_link_libraries(other PRIVATE quipu::quipu)
")
file(WRITE ${scratch_dir}/other/main.cpp "int main() {}\n")

# commands_in(SOURCE BINARY OUTPUT): how everything in a project would be compiled.
function(commands_in source binary output)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${source} -B ${binary} -G Ninja -DCMAKE_CXX_COMPILER=${compiler}
                          -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
                  RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "cannot configure ${source}:\n${text}")
  endif()
  file(READ ${binary}/compile_commands.json commands)
  if(NOT commands MATCHES "core/tensor[.]cpp")
    message(FATAL_ERROR "${source} does not build the library")
  elseif(commands MATCHES "-Werror")
    message(FATAL_ERROR "warnings are errors in ${source}")
  endif()
  set(${output} "${commands}" PARENT_SCOPE)
endfunction()

commands_in(${source_dir} ${scratch_dir}/alone alone)
commands_in(${scratch_dir}/other ${scratch_dir}/build part)
if(part MATCHES "\"file\": \"[^\"]*/(tests|bench|examples)/")
  message(FATAL_ERROR "a part builds tests, benchmarks or examples, too")
endif()
