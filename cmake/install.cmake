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
