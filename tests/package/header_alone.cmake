# SPDX-License-Identifier: Apache-2.0
# Compiles each public header as the first and only include of a file of its own, twice for its guard.
get_property(components GLOBAL PROPERTY USP_COMPONENTS)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/*/include/usp/*.hpp ${PROJECT_SOURCE_DIR}/topology/base/include/usp/*.hpp)
set(sources "")
foreach(header IN LISTS headers)
  string(REGEX REPLACE "^.*/include/" "" include "${header}")
  string(MAKE_C_IDENTIFIER "${include}" name)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@include@\"\n#include \"@include@\"\n" @ONLY)
  list(APPEND sources ${source})
endforeach()
add_library(headers_alone OBJECT EXCLUDE_FROM_ALL ${sources})
target_compile_options(headers_alone PRIVATE -O0)
target_link_libraries(headers_alone PRIVATE usp_build_flags nlohmann_json::nlohmann_json)
foreach(component IN LISTS components)
  target_link_libraries(headers_alone PRIVATE usp::${component})
endforeach()
# A test that builds: most users never need it.
add_test(NAME package.headers_alone COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target headers_alone)
set_tests_properties(package.headers_alone PROPERTIES LABELS package TIMEOUT 600)
