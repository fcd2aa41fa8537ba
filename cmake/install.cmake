# What `cmake --install` copies beside the headers: the library, what find_package(quipu) reads, programs and pages. No path
# of the machine that built it is kept: dependencies are found again where the package is used, and programs look for their
# data beside themselves (examples/shared_file.h).
include(CMakePackageConfigHelpers)
set(quipu_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/quipu)
install(TARGETS quipu EXPORT quipuTargets)
install(EXPORT quipuTargets NAMESPACE quipu:: DESTINATION ${quipu_package_folder})
configure_package_config_file(cmake/quipuConfig.cmake.in ${PROJECT_BINARY_DIR}/quipuConfig.cmake
                              INSTALL_DESTINATION ${quipu_package_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quipuConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quipuConfig.cmake ${PROJECT_BINARY_DIR}/quipuConfigVersion.cmake
        DESTINATION ${quipu_package_folder})

# For builds without CMake: c++ -std=c++20 main.cpp $(pkg-config --static --cflags --libs quipu), and without --static for a
# shared library, which names itself what it needs. Libraries of CUDA and of sanitizers are found by CMake alone.
if(QUIPU_CUDA STREQUAL "OFF" AND NOT QUIPU_SANITIZE AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(quipu_pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  set(quipu_pc_private "Requires.private: fmt zlib\nLibs.private: -pthread\n")
  if(BUILD_SHARED_LIBS)
    set(quipu_pc_private "")
  endif()
  file(RELATIVE_PATH quipu_pc_prefix /${quipu_pc_folder} /)
  configure_file(cmake/quipu.pc.in ${PROJECT_BINARY_DIR}/quipu.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/quipu.pc DESTINATION ${quipu_pc_folder})
endif()

# What programs read: in the build directory links to the tree, under the names that it has when installed.
set(quipu_data bench/published bench/tables/machine_code.csv examples/data/digits.csv.gz)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/quipu)
foreach(entry IN LISTS quipu_data)
  cmake_path(GET entry FILENAME name)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${entry} ${PROJECT_BINARY_DIR}/share/quipu/${name} SYMBOLIC)
endforeach()
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/share/quipu/source SYMBOLIC)  # for tpa_lm to learn
