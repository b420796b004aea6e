#include "formats/models/chat.hpp"

#include <vector>

#include <fmt/ranges.h>

#include "lib/core/error.hpp"

namespace kvcodec {

constexpr ChatForm kChatForms[] = {
    {"Phi 4", "<|im_sep|>", "<|im_start|>user<|im_sep|>", "<|im_end|><|im_start|>assistant<|im_sep|>",
     "<|im_end|>"},
    {"ChatML", "<|im_start|>", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"},
    {"Llama 3", "<|start_header_id|>", "<|start_header_id|>user<|end_header_id|>\n\n",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
    {"Gemma", "<start_of_turn>", "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n",
     "<end_of_turn>"},
    {"harmony", "<|start|>", "<|start|>user<|message|>",
     "<|end|><|start|>assistant<|channel|>final<|message|>", "<|return|>"},
    {"Granite", "<|start_of_role|>", "<|start_of_role|>user<|end_of_role|>",
     "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>", ""},
    {"Phi 3", "<|end|>", "<|user|>\n", "<|end|>\n<|assistant|>\n", "<|end|>"},
    {"DeepSeek", "<｜User｜>", "<｜User｜>", "<｜Assistant｜>", ""},
    {"Mistral", "[INST]", "[INST] ", " [/INST]", ""},
};

const ChatForm& chat_form_of(std::string_view chat_template, const std::string& where) {
  std::vector<std::string_view> names;
  for (const ChatForm& form : kChatForms) {
    if (chat_template.find(form.mark) != std::string_view::npos) return form;
    names.push_back(form.name);
  }
  throw bad_input(
      "{}: {}; known are {}: write its words into the prompt, without --chat", where,
      chat_template.empty() ? "the model has no chat template" : "its chat template has no known form",
      fmt::join(names, ", "));
}

}  // namespace kvcodec
