# SPDX-License-Identifier: Apache-2.0
# How this project declares libraries, tests and embedded files.

add_library(usp_build_flags INTERFACE)
target_compile_features(usp_build_flags INTERFACE cxx_std_20)
set(usp_host_flags
    -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
    -Wno-missing-field-initializers # designated initializers leave the rest at its default
    # g++ 12 reports its own std::string and std::vector when inlined (bugs 105651, 105329)
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overread>
    $<$<BOOL:${USP_WERROR}>:-Werror>)
set(usp_cuda_flags -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers --expt-relaxed-constexpr
                   $<$<BOOL:${USP_WERROR}>:-Werror=all-warnings>)
target_compile_options(
  usp_build_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${usp_host_flags}>"
                            "$<$<COMPILE_LANGUAGE:CUDA>:${usp_cuda_flags}>")
if(USP_SANITIZE)
  target_compile_options(usp_build_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${USP_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(usp_build_flags INTERFACE -fsanitize=${USP_SANITIZE})
endif()

# Packages that a consumer of the static libraries must find, filled by usp_add_library.
define_property(GLOBAL PROPERTY USP_CONSUMER_PACKAGES BRIEF_DOCS "find_dependency of uspConfig.cmake")

# Links a private library. One that is only headers stays out of the export: a consumer never needs it.
function(usp_link_private target library)
  get_target_property(imported ${library} IMPORTED)
  get_target_property(type ${library} TYPE)
  get_target_property(links ${library} INTERFACE_LINK_LIBRARIES)
  if(imported AND type STREQUAL "INTERFACE_LIBRARY" AND NOT links)
    target_include_directories(${target} SYSTEM
                               PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>)
  else()
    target_link_libraries(${target} PRIVATE ${library})
    usp_need_package(${library})
  endif()
endfunction()

# Notes that consumers need the package of an imported target such as EXPAT::EXPAT.
function(usp_need_package library)
  if(library MATCHES "^([A-Za-z0-9_]+)::" AND NOT CMAKE_MATCH_1 STREQUAL "usp")
    set_property(GLOBAL APPEND PROPERTY USP_CONSUMER_PACKAGES ${CMAKE_MATCH_1})
  endif()
endfunction()

# usp_add_library(<name> SOURCES ... [PUBLIC libs...] [PRIVATE libs...])
# makes the target usp_<name> with the alias usp::<name>; its headers are those below <dir>/include.
function(usp_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(target usp_${name})
  add_library(${target} ${arg_SOURCES})
  add_library(usp::${name} ALIAS ${target})
  target_include_directories(
    ${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # The flags are copied, not linked: a static library's private links would be part of the export.
  target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:usp_build_flags,INTERFACE_COMPILE_OPTIONS>)
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC})
  foreach(library IN LISTS arg_PUBLIC)
    usp_need_package(${library})
  endforeach()
  # Texts are written with fmt in all libraries, and the precompiled header that they share holds it.
  foreach(library IN LISTS arg_PRIVATE ITEMS fmt::fmt)
    usp_link_private(${target} ${library})
  endforeach()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  usp_precompile(${target})
  usp_export_library(${target})
endfunction()

# Sources that read or print once per run: optimizing them further costs build time and buys nothing.
function(usp_light_sources)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endfunction()

# JSON, fmt and the heavier standard headers are parsed once for all libraries: half of the build time otherwise.
function(usp_precompile target)
  if(target STREQUAL usp_base)
    target_precompile_headers(${target} PRIVATE <algorithm> <functional> <map> <optional> <sstream> <string> <vector>
                              <fmt/format.h> <nlohmann/json.hpp>)
  else()
    target_precompile_headers(${target} REUSE_FROM usp_base)
  endif()
endfunction()

# Puts a library with its headers (below <dir>/include, without those in detail/) into the package.
function(usp_export_library target)
  get_target_property(name ${target} EXPORT_NAME)
  set_property(GLOBAL APPEND PROPERTY USP_COMPONENTS ${name})
  install(TARGETS ${target} EXPORT usp-targets)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/include)
    # usp/base/json*.hpp serve the project's own .cpp files; without them consumers need no nlohmann/json. Headers
    # in detail/ serve the library that owns them, and its tests.
    install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
            FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "json*.hpp" EXCLUDE PATTERN detail EXCLUDE)
  endif()
endfunction()

# usp_add_test(<name> SOURCES ... [LINK libs...] [LABELS ...] [TIMEOUT s]): one GoogleTest binary, registered
# as one ctest case per binary so that a hang is seen as that binary's timeout.
function(usp_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(USP_SANITIZE) # some ten times as slow
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  if(NOT TARGET usp_test_headers)
    file(WRITE ${PROJECT_BINARY_DIR}/test_headers.cpp "")
    add_library(usp_test_headers OBJECT ${PROJECT_BINARY_DIR}/test_headers.cpp)
    usp_test_flags(usp_test_headers)
    target_precompile_headers(usp_test_headers PRIVATE <algorithm> <functional> <map> <string> <vector>
                              <gtest/gtest.h> <nlohmann/json.hpp>)
  endif()
  add_executable(test_${name} ${arg_SOURCES})
  usp_test_flags(test_${name})
  target_precompile_headers(test_${name} REUSE_FROM usp_test_headers)
  target_link_libraries(test_${name} PRIVATE ${arg_LINK})
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# What all tests are compiled with: they share one precompiled header, so these must be the same.
function(usp_test_flags target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
  target_compile_definitions(${target} PRIVATE USP_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                               USP_CONFIGS="${PROJECT_SOURCE_DIR}/configs")
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${target} PRIVATE usp_build_flags GTest::gtest_main nlohmann_json::nlohmann_json)
endfunction()
