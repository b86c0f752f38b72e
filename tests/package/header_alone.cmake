# SPDX-License-Identifier: Apache-2.0
# Compiles each public header as the first and only include of a file of its own, twice for its guard. A .h must
# compile as C99 too. A .cuda.hpp is for files that call CUDA themselves.
get_property(components GLOBAL PROPERTY USP_COMPONENTS)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/*/include/usp/*.hpp ${PROJECT_SOURCE_DIR}/*/include/usp/*.h
     ${PROJECT_SOURCE_DIR}/topology/base/include/usp/*.hpp ${PROJECT_SOURCE_DIR}/planner/schedule/include/usp/*.hpp)
set(sources "")
set(c_sources "")
if(NOT USP_HAS_CUDA)
  list(FILTER headers EXCLUDE REGEX "\\.cuda\\.hpp$")
endif()
foreach(header IN LISTS headers)
  string(REGEX REPLACE "^.*/include/" "" include "${header}")
  string(MAKE_C_IDENTIFIER "${include}" name)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@include@\"\n#include \"@include@\"\n" @ONLY)
  list(APPEND sources ${source})
  if(header MATCHES "\\.h$")
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.c)
    # The declaration keeps the file from being empty for a header without any.
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@include@\"\n#include \"@include@\"\nextern int here;\n" @ONLY)
    list(APPEND c_sources ${source})
  endif()
endforeach()
add_library(c_headers_alone OBJECT EXCLUDE_FROM_ALL ${c_sources})
set_target_properties(c_headers_alone PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(c_headers_alone PRIVATE -O0 -Wall -Wextra -pedantic-errors -Wstrict-prototypes -Werror)
target_link_libraries(c_headers_alone PRIVATE usp::c)
add_library(headers_alone OBJECT EXCLUDE_FROM_ALL ${sources})
target_compile_options(headers_alone PRIVATE -O0)
target_link_libraries(headers_alone PRIVATE usp_build_flags nlohmann_json::nlohmann_json)
foreach(component IN LISTS components)
  target_link_libraries(headers_alone PRIVATE usp::${component})
endforeach()
# A test that builds: most users never need it.
add_test(NAME package.headers_alone COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target headers_alone c_headers_alone)
set_tests_properties(package.headers_alone PROPERTIES LABELS package TIMEOUT 600)
