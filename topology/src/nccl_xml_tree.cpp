// SPDX-License-Identifier: Apache-2.0
#include "nccl_xml_tree.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"

#include <expat.h>

#include <memory>
#include <type_traits>

namespace usp::topology::xml {
namespace {

constexpr std::size_t max_depth = 64;
constexpr std::size_t max_elements = 100000;

/// Expat calls back through C: nothing may be thrown there, so the first problem is kept and parsing stopped.
struct State {
  XML_Parser parser = nullptr;
  Element document;            // holds the root as its only child
  std::vector<Element*> open;  // an open element's siblings are complete, so these pointers stay valid
  std::size_t elements = 0;
  std::string problem;
  std::string token;
  long line = 0;

  [[nodiscard]] long here() const { return static_cast<long>(XML_GetCurrentLineNumber(parser)); }
  void stop(const std::string& what, const std::string& at) {
    if (!problem.empty()) return;
    problem = what;
    token = at;
    line = here();
    XML_StopParser(parser, XML_FALSE);
  }
};

void on_start(void* data, const XML_Char* name, const XML_Char** attributes) {
  State& state = *static_cast<State*>(data);
  if (state.open.size() > max_depth) return state.stop("elements are nested deeper than 64", name);
  if (++state.elements > max_elements) return state.stop("more than 100,000 elements", name);
  Element element;
  element.name = name;
  element.line = state.here();
  for (; *attributes != nullptr; attributes += 2)
    element.attributes.emplace_back(attributes[0], attributes[1]);
  state.open.back()->children.push_back(std::move(element));
  state.open.push_back(&state.open.back()->children.back());
}

void on_end(void* data, const XML_Char*) {
  State& state = *static_cast<State*>(data);
  if (state.problem.empty()) state.open.pop_back();
}

void on_text(void* data, const XML_Char* text, int length) {
  State& state = *static_cast<State*>(data);
  const std::string content(text, static_cast<std::size_t>(length));
  if (content.find_first_not_of(" \t\r\n") != std::string::npos)
    state.stop("text between elements, where NCCL writes none", excerpt(content));
}

void on_doctype(void* data, const XML_Char* name, const XML_Char*, const XML_Char*, int) {
  static_cast<State*>(data)->stop("document type declarations are refused: NCCL writes none", name);
}

}  // namespace

const std::string* Element::find(const char* key) const {
  for (const auto& [attribute, value] : attributes)
    if (attribute == key) return &value;
  return nullptr;
}

Element parse(const std::string& text, const std::string& file) {
  const std::unique_ptr<std::remove_pointer_t<XML_Parser>, void (*)(XML_Parser)> parser(
      XML_ParserCreate(nullptr), XML_ParserFree);
  if (parser == nullptr) throw EnvironmentError("no memory for the XML parser");
  State state;
  state.parser = parser.get();
  state.open.push_back(&state.document);
  XML_SetUserData(parser.get(), &state);
  XML_SetElementHandler(parser.get(), on_start, on_end);
  XML_SetCharacterDataHandler(parser.get(), on_text);
  XML_SetStartDoctypeDeclHandler(parser.get(), on_doctype);
  if (XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE) != XML_STATUS_OK) {
    if (!state.problem.empty()) throw InvalidInput({file, state.line, excerpt(state.token)}, state.problem);
    throw InvalidInput({file, state.here(), ""}, std::string("is not well-formed XML: ") +
                                                     XML_ErrorString(XML_GetErrorCode(parser.get())));
  }
  return std::move(state.document.children.front());
}

}  // namespace usp::topology::xml
