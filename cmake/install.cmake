# What `cmake --install` copies beside the headers: the library, and what find_package(quipu) reads. No path of the
# machine that built it is kept: dependencies are found again where the package is used.
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

# For builds without CMake: c++ -std=c++20 main.cpp $(pkg-config --static --cflags --libs quipu). Libraries of CUDA and of
# sanitizers are found by CMake alone.
if(QUIPU_CUDA STREQUAL "OFF" AND NOT QUIPU_SANITIZE AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(quipu_pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH quipu_pc_prefix /${quipu_pc_folder} /)
  configure_file(cmake/quipu.pc.in ${PROJECT_BINARY_DIR}/quipu.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/quipu.pc DESTINATION ${quipu_pc_folder})
endif()
