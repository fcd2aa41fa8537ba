# A user's own kernel, out of tree: installs the build, builds tests/emulator/package against it, runs it, and wants its
# race reported; then puts the missing barrier in and wants silence. Takes build_dir, source_dir, scratch_dir, compiler.
function(run expected_status expected_text)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL expected_status OR NOT output MATCHES "${expected_text}")
    message(FATAL_ERROR "wanted status ${expected_status} and '${expected_text}', got ${status}: ${ARGN}\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

file(REMOVE_RECURSE ${scratch_dir})
file(COPY ${source_dir}/package/ DESTINATION ${scratch_dir}/source)
run(0 "" ${CMAKE_COMMAND} --install ${build_dir} --prefix ${scratch_dir}/prefix)
run(0 "" ${CMAKE_COMMAND} -S ${scratch_dir}/source -B ${scratch_dir}/build -G Ninja
    -DCMAKE_PREFIX_PATH=${scratch_dir}/prefix -DCMAKE_CXX_COMPILER=${compiler})
run(0 "" ${CMAKE_COMMAND} --build ${scratch_dir}/build)
run(66 "reverse.cu:[56]: error: .race. block .0,0,0. thread .*shared array 'tile'.*no barrier between .kernel reverse.*[0-9] reports"
    ${scratch_dir}/build/my_program)

file(READ ${scratch_dir}/source/reverse.cu text)
string(REPLACE "  out[" "  __syncthreads();\n  out[" text "${text}")
file(WRITE ${scratch_dir}/source/reverse.cu "${text}")
run(0 "" ${CMAKE_COMMAND} --build ${scratch_dir}/build)
run(0 "^done: 1\n$" ${scratch_dir}/build/my_program)
