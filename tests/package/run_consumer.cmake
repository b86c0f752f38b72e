# SPDX-License-Identifier: Apache-2.0
# Script: configures, builds and runs consumer/ against the build tree or an install tree of usp.
#   TREE build|install, USP_BUILD, USP_SOURCE, USP_VERSION, COMPONENTS, GENERATOR, CC, CXX, SANITIZE,
#   WORK (scratch folder)
file(REMOVE_RECURSE ${WORK})
if(TREE STREQUAL "install")
  set(prefix ${WORK}/prefix)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${USP_BUILD} --prefix ${prefix} OUTPUT_QUIET
                  COMMAND_ERROR_IS_FATAL ANY)
  # Moved, to show that nothing in it holds the place it was installed to.
  file(RENAME ${prefix} ${WORK}/moved)
  set(prefix ${WORK}/moved)
  file(GLOB_RECURSE texts ${prefix}/*.cmake ${prefix}/*.hpp ${prefix}/*.h)
  foreach(file IN LISTS texts)
    file(READ ${file} text)
    string(FIND "${text}" "${USP_SOURCE}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} names the source folder ${USP_SOURCE}")
    endif()
    if(text MATCHES "#include <(nlohmann|fmt)/")
      message(FATAL_ERROR "${file} includes nlohmann/json or fmt, whose headers consumers need not have")
    endif()
    if(file MATCHES "/detail/" OR text MATCHES "#include [<\"]usp/[a-z_/]*detail/")
      message(FATAL_ERROR "${file} is an internal header or includes one; detail/ is not installed")
    endif()
  endforeach()
else()
  set(prefix ${USP_BUILD})
endif()

set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
# Configures the consumer for components and a version; sets `status` and `log`.
macro(configure folder components version)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/${folder} -G ${GENERATOR}
            -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_FLAGS=${flags}
            -DCMAKE_CXX_FLAGS=${flags} -DCMAKE_PREFIX_PATH=${prefix} ${ARGN}
            -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DWANTED_VERSION=${version}
            "-DWANTED_COMPONENTS=${components}"
    RESULT_VARIABLE status OUTPUT_VARIABLE log ERROR_VARIABLE log)
endmacro()

# Writes the first block of runtime/library.md that is fenced as `language` to a file.
function(extract_program language file)
  file(READ ${USP_SOURCE}/runtime/library.md text)
  string(FIND "${text}" "\n```${language}\n" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "runtime/library.md has no program fenced as ${language}")
  endif()
  string(LENGTH "\n```${language}\n" fence)
  math(EXPR begin "${begin} + ${fence}")
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(FIND "${text}" "\n```" length)
  string(SUBSTRING "${text}" 0 ${length} text)
  file(WRITE ${file} "${text}\n")
endfunction()
extract_program(cpp ${WORK}/readme/readme.cpp)
extract_program(c ${WORK}/readme/readme.c)

configure(consumer "${COMPONENTS}" ${USP_VERSION} -DREADME_PROGRAMS=${WORK}/readme)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the consumer does not configure:\n${log}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/consumer/consumer OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
if(NOT out STREQUAL "usp ${USP_VERSION}: 131072 tokens\n")
  message(FATAL_ERROR "the consumer printed: ${out}")
endif()
foreach(program readme_cpp readme_c)
  execute_process(COMMAND ${WORK}/consumer/${program} OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
  if(out)
    message(FATAL_ERROR "${program} of runtime/library.md printed: ${out}")
  endif()
endforeach()

# A program that executes plans links the schedule and the kernels, and nothing that plans or reads clusters.
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/consumer --target readme_cpp --clean-first --verbose
                OUTPUT_VARIABLE link_line COMMAND_ERROR_IS_FATAL ANY)
if(NOT link_line MATCHES "usp_schedule" OR link_line MATCHES "usp_planner|usp_topology|usp_session|expat")
  message(FATAL_ERROR "the executor links other libraries than it may:\n${link_line}")
endif()

configure(no_component "base;warp_drive" ${USP_VERSION})
if(status EQUAL 0 OR NOT log MATCHES "no component 'warp_drive'")
  message(FATAL_ERROR "an unknown component must be refused by name:\n${log}")
endif()
configure(other_version "base" 99.0)
if(status EQUAL 0)
  message(FATAL_ERROR "another version must be refused:\n${log}")
endif()
