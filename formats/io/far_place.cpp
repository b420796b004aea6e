// Names of files on servers.
#include <algorithm>
#include <cstdlib>

#include "formats/io/http.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

constexpr std::string_view kS3 = "s3://";

/// "https://" of "https://…", which must be in lower case; empty for an unknown scheme.
std::string_view scheme_of(std::string_view name) {
  for (const std::string_view scheme : {"http://", "https://", "s3://"})
    if (name.starts_with(scheme)) return scheme;
  return {};
}

/// The value of the first of these variables that is set and not empty.
template <class... Names>
std::string from_environment(Names... names) {
  for (const char* name : {names...})
    if (const char* value = std::getenv(name); value && *value) return value;
  return "";
}

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_.~/").find(c) != std::string_view::npos;
}

/// A key, percent-encoded as URLs and the signatures of S3 need it.
std::string percent_encoded(std::string_view key) {
  std::string text;
  for (const char c : key)
    text += is_plain(c) ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return text;
}

/// The URL of an object. By default the bucket is a part of the host's name, as AWS requires; a certificate for *.s3.… does not
/// cover names with dots.
std::string url_of_object(const std::string& bucket, const std::string& key, const std::string& region) {
  std::string endpoint = from_environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  const std::string path = percent_encoded(key);
  if (endpoint.empty()) {
    const bool in_host = bucket.find('.') == std::string::npos;
    return in_host ? fmt::format("https://{}.s3.{}.amazonaws.com/{}", bucket, region, path)
                   : fmt::format("https://s3.{}.amazonaws.com/{}/{}", region, bucket, path);
  }
  const std::string_view scheme = scheme_of(endpoint);
  if (scheme.empty() || scheme == kS3)
    throw usage_error("AWS_ENDPOINT_URL is '{}'; it must begin with https:// or http://", endpoint);
  endpoint.erase(endpoint.find_last_not_of('/') + 1);
  return fmt::format("{}/{}/{}", endpoint, bucket, path);
}

FarPlace s3_place(const std::string& name) {
  const std::string_view rest = std::string_view(name).substr(kS3.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string bucket(rest.substr(0, slash)), key(rest.substr(std::min(slash + 1, rest.size())));
  if (bucket.size() < 3 || !std::ranges::all_of(bucket, is_plain) || key.empty())  // bucket has no '/'
    throw usage_error("'{}' names no object; it must be s3://BUCKET/KEY", name);
  std::string region = from_environment("AWS_REGION", "AWS_DEFAULT_REGION");
  if (region.empty()) region = "us-east-1";
  FarPlace place{.url = url_of_object(bucket, key, region), .shown = name, .s3 = true};
  place.certificates = from_environment("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE");
  place.key_id = from_environment("AWS_ACCESS_KEY_ID");
  place.secret = from_environment("AWS_SECRET_ACCESS_KEY");
  if (place.key_id.empty() != place.secret.empty())
    throw usage_error("{}: of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set", name);
  if (place.key_id.empty()) return place;
  place.session_token = from_environment("AWS_SESSION_TOKEN");
  place.signature = fmt::format("aws:amz:{}:s3", region);
  return place;
}

bool is_far(std::string_view name) { return !scheme_of(name).empty(); }

std::string shown_name(std::string_view name) {
  const std::string_view scheme = scheme_of(name);
  if (scheme.empty() || scheme == kS3) return std::string(name);
  std::string_view rest = name.substr(scheme.size());
  rest = rest.substr(0, rest.find_first_of("?#"));
  const size_t path = std::min(rest.find('/'), rest.size());
  if (const size_t user = rest.substr(0, path).rfind('@'); user != std::string_view::npos)
    rest = rest.substr(user + 1);
  return std::string(scheme) + std::string(rest);
}

std::string shown_text(std::string_view text) {
  // Any character may be a part of a password or a query, so a URL extends to the next space, except for marks at its end.
  constexpr std::string_view kSpace = " \t\r\n", kMarks = "\"'()<>[]{}.,:;";
  std::string shown;
  while (!text.empty()) {
    const size_t begin = std::min({text.find("http://"), text.find("https://"), text.size()});
    shown += text.substr(0, begin);
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(kSpace)),
                           url = word.substr(0, word.find_last_not_of(kMarks) + 1);
    shown += shown_name(url);
    shown += word.substr(url.size());
    text.remove_prefix(word.size());
  }
  return shown;
}

FarPlace far_place(const std::string& name) {
  const std::string_view scheme = scheme_of(name);
  if (scheme == kS3) return s3_place(name);
  const std::string shown = shown_name(name);
  const std::string_view rest = std::string_view(shown).substr(scheme.size());
  if (rest.empty() || rest.front() == '/')
    throw usage_error("'{}' names no server; it must be {}HOST/PATH", shown, scheme);
  return {.url = name, .shown = shown, .certificates = from_environment("CURL_CA_BUNDLE", "SSL_CERT_FILE")};
}

}  // namespace kvcodec
