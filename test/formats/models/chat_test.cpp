#include "formats/models/chat.hpp"

#include <string>

#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace chat_test {

using namespace kvcodec;

TEST_CASE("chat: forms of templates are known by what they put around messages") {
  // Parts of templates as they are published with models of these families.
  const std::pair<const char*, const char*> cases[] = {
      {"{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}", "ChatML"},
      {"{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}", "Phi 4"},
      {"{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}",
       "Granite"},
      {"{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}{{- '<|eot_id|>' }}",
       "Llama 3"},
      {"{{ '<start_of_turn>' + role + '\\n' + (message['content'] | trim) + '<end_of_turn>\\n' }}", "Gemma"},
      {"{{- \"<|start|>user<|message|>\" + message.content + \"<|end|>\" }}", "harmony"},
      {"{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}", "Phi 3"},
      {"{{'<｜User｜>' + message['content']}}", "DeepSeek"},
      {"{{ '[INST] ' + message['content'] + ' [/INST]' }}", "Mistral"}};
  for (const auto& [text, name] : cases) {
    const ChatForm& form = chat_form_of(text, "x");
    CHECK_EQ(form.name, name);
    // The template has the marks that the form writes.
    CHECK(std::string(text).find(std::string(form.before).substr(0, form.before.find_first_of("u\n "))) !=
          std::string::npos);
  }
  CHECK_THROWS_WITH_AS(chat_form_of("", "dir"), doctest::Contains("dir: the model has no chat template"),
                       Error);
  CHECK_THROWS_WITH_AS(chat_form_of("{{ message }}", "dir"), doctest::Contains("has no known form"), Error);
}

}  // namespace chat_test
