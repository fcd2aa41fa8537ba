# Programs and pages, which `cmake --install` copies from a build at top level, and the packages that `cpack` makes in a
# build directory: a .deb for Debian, and the same as a plain archive. scripts/package builds both and tests them.
if(QUIPU_BENCH)
  install(TARGETS quipu-bench quipu-tables)
  install(DIRECTORY bench/published DESTINATION ${CMAKE_INSTALL_DATADIR}/quipu)
  install(FILES bench/tables/machine_code.csv DESTINATION ${CMAKE_INSTALL_DATADIR}/quipu)
endif()
if(QUIPU_EXAMPLES)  # names such as `hello` are too general for a folder of all programs
  file(GLOB sources CONFIGURE_DEPENDS examples/*.cpp examples/*.h)
  install(FILES ${sources} DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
  install(FILES examples/data/digits.csv.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/quipu)
  list(FILTER sources INCLUDE REGEX "[.]cpp$")
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../..")  # an archive may be unpacked anywhere
    install(TARGETS ${name} DESTINATION ${CMAKE_INSTALL_LIBDIR}/quipu/examples)
  endforeach()
endif()
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
file(GLOB pages CONFIGURE_DEPENDS docs/*.md)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/build/docs/html DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)  # by scripts/docs

# No package of Debian has what a build with CUDA or sanitizers needs.
if(NOT QUIPU_CUDA STREQUAL "OFF" OR QUIPU_SANITIZE)
  return()
endif()
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_VENDOR "Quipu developers")
set(CPACK_PACKAGE_CONTACT "Quipu developers" CACHE STRING "Who maintains the package, as Name <address>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tensors and gradients in C++20, with an account of every byte")
set(CPACK_PACKAGE_DESCRIPTION "Quipu is a library for people who write training loops in C++: tensors, a
tape, layers, optimizers, data and checkpoints. Gradients can be checked
numerically by one call, and a ledger knows who holds every byte.
.
This package has the library, headers, files for CMake and pkg-config,
benchmarks, examples and pages.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                                WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# Packages of the libraries that the files here were linked with, at versions that will do; the build directory has ours.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake, pkg-config")
if(NOT BUILD_SHARED_LIBS)  # programs that link the static library link these, too
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libfmt-dev, zlib1g-dev")
endif()
include(CPack)
