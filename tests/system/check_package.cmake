# Uses the installed package from outside the tree: installs the build, moves it elsewhere, builds tests/system/package
# against it and runs its programs. Takes build_dir, source_dir, scratch_dir, compiler, build_type and flags.
function(run)
  list(JOIN ARGN " " text)
  message(STATUS ${text})
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed: ${text}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${scratch_dir})
file(MAKE_DIRECTORY ${scratch_dir})
run(${CMAKE_COMMAND} --install ${build_dir} --prefix ${scratch_dir}/first)
file(RENAME ${scratch_dir}/first ${scratch_dir}/prefix)

# Nothing that find_package reads may know where it was built.
file(GLOB_RECURSE package_files ${scratch_dir}/prefix/*.cmake)
foreach(file IN LISTS package_files)
  file(READ ${file} text)
  foreach(path IN ITEMS ${build_dir} ${source_dir})
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} contains the path ${path}")
    endif()
  endforeach()
endforeach()

run(${source_dir}/tests/system/check_headers ${source_dir} ${scratch_dir}/prefix)
run(${CMAKE_COMMAND} -S ${source_dir}/tests/system/package -B ${scratch_dir}/build -G Ninja
    -DCMAKE_PREFIX_PATH=${scratch_dir}/prefix -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_BUILD_TYPE=${build_type}
    "-DCMAKE_CXX_FLAGS=${flags}")
run(${CMAKE_COMMAND} --build ${scratch_dir}/build)
foreach(program IN ITEMS my_program names)
  run(${scratch_dir}/build/${program})
  message(STATUS "${output}")
endforeach()


# Without CMake, where pkg-config is and the build installs what it reads.
file(GLOB_RECURSE pc_file ${scratch_dir}/prefix/*.pc)
find_program(pkg_config pkg-config)
if(pc_file AND pkg_config)
  cmake_path(GET pc_file PARENT_PATH pc_folder)
  run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc_folder} ${pkg_config} --static --cflags --libs quipu)
  separate_arguments(words UNIX_COMMAND "${output}")
  run(${compiler} -std=c++20 ${source_dir}/tests/system/package/names.cpp ${words} -o ${scratch_dir}/by_pkg_config)
  run(${scratch_dir}/by_pkg_config)
endif()
