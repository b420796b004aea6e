// How models that were trained to answer want to be asked.
#pragma once

#include <string>
#include <string_view>

namespace kvcodec {

/// The text around a user's message, up to where the model's answer begins, and the token that ends the answer.
struct ChatForm {
  std::string_view name;
  std::string_view mark;  ///< a text in templates of this form, which have no earlier entry's mark
  std::string_view before, behind;
  std::string_view end;  ///< empty: the model's own end of text
};

/// The form of a chat template (tokenizer_config.json: chat_template; a program in Jinja) by the words that it puts around messages: its system
/// message and its tools are left out. Throws Error(bad_input) for a template of no known form; where: its file, for the message.
const ChatForm& chat_form_of(std::string_view chat_template, const std::string& where);

}  // namespace kvcodec
