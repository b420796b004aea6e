// Names of files that lie on servers: http://, https:// and s3:// (S3 and what speaks its protocol).
#pragma once

#include <string>
#include <string_view>

namespace kvcodec {

/// Whether it is such a name.
bool is_far(std::string_view name);

/// The name as messages and histories show it: of a URL without user, password and query, which may hold secrets. Of
/// anything else the name itself.
std::string shown_name(std::string_view name);

/// A text for people with all its URLs as shown_name has them. A URL ends with the word that it stands in; marks at the word's end are
/// the text's.
std::string shown_text(std::string_view text);

/// Where a file lies, and how the server wants to be asked for it.
struct FarPlace {
  std::string url;    ///< http or https
  std::string shown;  ///< the name in messages
  bool s3 = false;
  std::string certificates = {};  ///< a file of those that are trusted; empty: the system's

  // Of s3 with credentials; empty: requests are not signed, as for buckets that everybody may read.
  std::string signature = {};      ///< what libcurl's CURLOPT_AWS_SIGV4 takes: "aws:amz:REGION:s3"
  std::string key_id = {};         ///< AWS_ACCESS_KEY_ID
  std::string secret = {};         ///< AWS_SECRET_ACCESS_KEY
  std::string session_token = {};  ///< AWS_SESSION_TOKEN; may be empty
};

/// What a name means. Of s3://BUCKET/KEY the environment says the rest, by the names that AWS's own programs know:
/// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION (us-east-1 if neither is set),
/// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (that of AWS if neither is set). Certificates are those of CURL_CA_BUNDLE or
/// SSL_CERT_FILE, of s3:// before them AWS_CA_BUNDLE. Throws Error(usage) for a name without a host, a bucket or a key, and for one
/// half of the credentials.
FarPlace far_place(const std::string& name);

}  // namespace kvcodec
