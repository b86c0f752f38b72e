# SPDX-License-Identifier: Apache-2.0
# libFuzzer targets; configure with -DUSP_BUILD_FUZZERS=ON -DCMAKE_CXX_COMPILER=clang++.
# Run: build/bin/fuzz_nvidia_smi -max_total_time=300 CORPUS_DIR tests/data/topo
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "USP_BUILD_FUZZERS needs clang++, whose libFuzzer the targets link")
endif()

# usp_add_fuzzer(<property> HEADER <header> [LINK libs...]): fuzz_<property> from usp::fuzz::<property>.
# The libraries under test must be built with the same -fsanitize=fuzzer-no-link: see USP_SANITIZE.
function(usp_add_fuzzer property)
  cmake_parse_arguments(arg "" "HEADER" "LINK" ${ARGN})
  add_executable(fuzz_${property} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/fuzz_target.cpp)
  target_include_directories(fuzz_${property} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  target_compile_definitions(fuzz_${property} PRIVATE USP_FUZZ_PROPERTY=${property} "USP_FUZZ_HEADER=\"${arg_HEADER}\"")
  target_compile_options(fuzz_${property} PRIVATE -fsanitize=fuzzer,address)
  target_link_options(fuzz_${property} PRIVATE -fsanitize=fuzzer,address)
  target_link_libraries(fuzz_${property} PRIVATE usp_build_flags ${arg_LINK})
endfunction()

foreach(property nvidia_smi nccl_xml nccl_tests slurm)
  usp_add_fuzzer(${property} HEADER properties.hpp LINK usp::topology)
endforeach()
foreach(property cluster_json model_config plan_file)
  usp_add_fuzzer(${property} HEADER properties_json.hpp LINK usp::planner)
endforeach()
foreach(property socket_handshake socket_frames socket_link)
  usp_add_fuzzer(${property} HEADER properties_socket.hpp LINK usp::comm usp::topology)
  target_include_directories(fuzz_${property} PRIVATE ${PROJECT_SOURCE_DIR}/runtime/src)
endforeach()
