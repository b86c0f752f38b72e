# SPDX-License-Identifier: Apache-2.0
# libFuzzer targets. Configure a folder of their own, build it and let every target run for a minute:
#   cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DUSP_BUILD_FUZZERS=ON
#   cmake --build build-fuzz --target fuzz        # USP_FUZZ_SECONDS each, one after another
# One alone: build-fuzz/bin/fuzz_slurm -max_total_time=600 NEW_CORPUS tests/fuzz/corpus/slurm
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "USP_BUILD_FUZZERS needs clang++, whose libFuzzer the targets link")
endif()
set(USP_FUZZ_SECONDS 60 CACHE STRING "How long the target fuzz lets every fuzz target run")
add_custom_target(fuzz)
add_custom_target(fuzz_targets)

# usp_add_fuzzer(<property> HEADER <header> [SEEDS folder] [SOURCES files...] [LINK libs...])
# makes fuzz_<property> from usp::fuzz::<property>, and fuzz.<property>, which runs it as part of fuzz. SEEDS
# are corpus/<property> unless given. The binary needs nothing but system libraries and a corpus folder.
# The libraries under test are built with -fsanitize=fuzzer-no-link: see USP_SANITIZE.
function(usp_add_fuzzer property)
  cmake_parse_arguments(arg "" "HEADER;SEEDS" "SOURCES;LINK" ${ARGN})
  set(here ${PROJECT_SOURCE_DIR}/tests/fuzz)
  if(NOT arg_SEEDS)
    set(arg_SEEDS ${here}/corpus/${property})
  endif()
  add_executable(fuzz_${property} ${here}/fuzz_target.cpp ${arg_SOURCES})
  target_include_directories(fuzz_${property} PRIVATE ${here})
  target_compile_definitions(fuzz_${property} PRIVATE USP_FUZZ_PROPERTY=${property} "USP_FUZZ_HEADER=\"${arg_HEADER}\"")
  target_link_options(fuzz_${property} PRIVATE -fsanitize=fuzzer -static-libstdc++ -static-libgcc)
  target_link_libraries(fuzz_${property} PRIVATE usp_build_flags ${arg_LINK})
  add_dependencies(fuzz_targets fuzz_${property})
  set(found ${PROJECT_BINARY_DIR}/corpus/${property})
  add_custom_target(
    fuzz.${property}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${found}
    COMMAND fuzz_${property} -max_total_time=${USP_FUZZ_SECONDS} -timeout=20 -rss_limit_mb=2048
            -artifact_prefix=${found}- -print_final_stats=1 ${found} ${arg_SEEDS}
    DEPENDS fuzz_${property}
    USES_TERMINAL VERBATIM)
  add_dependencies(fuzz fuzz.${property})
endfunction()

set(data ${PROJECT_SOURCE_DIR}/tests/data)
usp_add_fuzzer(nvidia_smi HEADER properties.hpp SEEDS ${data}/topo LINK usp::topology)
foreach(property nccl_xml nccl_tests)
  usp_add_fuzzer(${property} HEADER properties.hpp SEEDS ${data}/${property} LINK usp::topology)
endforeach()
usp_add_fuzzer(slurm HEADER properties.hpp LINK usp::topology)
usp_add_fuzzer(peer_access HEADER properties.hpp LINK usp::topology)
usp_add_fuzzer(cluster_json HEADER properties_json.hpp SEEDS ${PROJECT_SOURCE_DIR}/configs/clusters LINK usp::planner)
usp_add_fuzzer(model_config HEADER properties_json.hpp SEEDS ${data}/hf_config LINK usp::planner)
usp_add_fuzzer(plan_request HEADER properties_json.hpp SEEDS ${data}/plan_requests LINK usp::planner)
usp_add_fuzzer(attention_request HEADER properties_json.hpp SEEDS ${data}/attention_requests LINK usp::planner)
usp_add_fuzzer(plan_file HEADER properties_json.hpp SEEDS ${data}/plans LINK usp::planner)
foreach(property synthetic fabric units nic device_list)
  usp_add_fuzzer(${property} HEADER properties_flags.hpp LINK usp::topology)
endforeach()
foreach(property sweep document_lengths)
  usp_add_fuzzer(${property} HEADER properties_lists.hpp LINK usp::planner)
endforeach()
foreach(property socket_handshake socket_frames socket_link)
  usp_add_fuzzer(${property} HEADER properties_socket.hpp LINK usp::comm usp::topology)
  target_include_directories(fuzz_${property} PRIVATE ${PROJECT_SOURCE_DIR}/runtime/src)
endforeach()
foreach(property score_csv calibration)
  usp_add_fuzzer(${property} HEADER properties_tables.hpp LINK usp::planner)
endforeach()
# One file of usp::exec, which would bring all kernels with it.
usp_add_fuzzer(npy HEADER properties_npy.hpp SOURCES ${PROJECT_SOURCE_DIR}/runtime/src/run/npy.cpp LINK usp::topology usp::schedule)
target_include_directories(fuzz_npy PRIVATE ${PROJECT_SOURCE_DIR}/runtime/include)
usp_add_fuzzer(launch HEADER properties_launch.hpp LINK usp::comm usp::topology)
