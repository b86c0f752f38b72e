# SPDX-License-Identifier: Apache-2.0
# How this project declares libraries, tests and embedded files.

add_library(usp_build_flags INTERFACE)
target_compile_features(usp_build_flags INTERFACE cxx_std_20)
target_compile_options(
  usp_build_flags INTERFACE -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor
                            -Wold-style-cast
                            # g++ 12 reports std::string concatenation (its bug 105651)
                            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                            $<$<BOOL:${USP_WERROR}>:-Werror>)
if(USP_SANITIZE)
  target_compile_options(usp_build_flags INTERFACE -fsanitize=${USP_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=all)
  target_link_options(usp_build_flags INTERFACE -fsanitize=${USP_SANITIZE})
endif()

# usp_add_library(<name> SOURCES ... [PUBLIC libs...] [PRIVATE libs...] [INCLUDES dirs...])
# makes the target usp_<name> with the alias usp::<name>; its headers are those below <dir>/include.
function(usp_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(usp_${name} ${arg_SOURCES})
  add_library(usp::${name} ALIAS usp_${name})
  target_include_directories(
    usp_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                       $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(usp_${name} PUBLIC cxx_std_20)
  target_link_libraries(usp_${name} PUBLIC ${arg_PUBLIC} PRIVATE $<BUILD_INTERFACE:usp_build_flags> ${arg_PRIVATE})
  set_target_properties(usp_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  install(TARGETS usp_${name} EXPORT usp-targets)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/include)
    install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
  endif()
endfunction()

# usp_add_test(<name> SOURCES ... [LINK libs...] [LABELS ...] [TIMEOUT s]): one GoogleTest binary, registered
# as one ctest case per binary so that a hang is seen as that binary's timeout.
function(usp_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(test_${name} ${arg_SOURCES})
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
  target_compile_definitions(test_${name} PRIVATE USP_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                                  USP_CONFIGS="${PROJECT_SOURCE_DIR}/configs")
  target_link_libraries(test_${name} PRIVATE usp_build_flags ${arg_LINK} GTest::gtest_main nlohmann_json::nlohmann_json)
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
