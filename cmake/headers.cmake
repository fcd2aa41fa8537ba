# The tree's headers under the name that users include them by: build/include/quipu -> the folders.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include/quipu)
foreach(entry core autograd ops quipu.h)
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${entry} ${CMAKE_BINARY_DIR}/include/quipu/${entry} SYMBOLIC)
endforeach()
