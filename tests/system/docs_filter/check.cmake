# scripts/docs_filter makes of sample.h what expected.txt says. Takes source_dir.
execute_process(COMMAND ${source_dir}/scripts/docs_filter ${CMAKE_CURRENT_LIST_DIR}/sample.h
                RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE errors)
file(READ ${CMAKE_CURRENT_LIST_DIR}/expected.txt expected)
if(NOT status EQUAL 0 OR NOT text STREQUAL expected)
  message(FATAL_ERROR "status ${status}, it printed\n${text}${errors}\nnot\n${expected}")
endif()
