//! A folder in a bucket. Requests are signed with the access key, in their address only.

use std::time::Duration;

use ledge_base::clock;
use ledge_egress::{HostPort, WebAddress};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};

use super::AuditSyncError;
use crate::config::AuditSyncConfig;

/// Validity of a signed address. Covers the time of an upload, and a small difference between the clocks.
const SIGNATURE_LIFETIME: Duration = Duration::from_mins(15);

/// A bucket, with the credentials for it.
pub struct S3Bucket {
    bucket: Bucket,
    credentials: Credentials,
    prefix: String,
}

/// The server of the buckets: the configured one, or that of Amazon for the region.
fn endpoint(config: &AuditSyncConfig) -> Option<WebAddress> {
    if let Some(endpoint) = &config.endpoint {
        return Some(endpoint.clone());
    }
    let domain = if config.region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let at = HostPort::new(&format!("s3.{}.{domain}", config.region), 443).ok()?;
    Some(WebAddress { tls: true, at, path: "/".to_owned() })
}

/// The server to connect to for a bucket, and whether the connection is encrypted.
pub fn server(config: &AuditSyncConfig, bucket: &str) -> Option<(HostPort, bool)> {
    let WebAddress { tls, at, .. } = endpoint(config)?;
    match style(config, bucket) {
        UrlStyle::Path => Some((at, tls)),
        UrlStyle::VirtualHost => HostPort::new(&format!("{bucket}.{}", at.host), at.port).ok().map(|at| (at, tls)),
    }
}

/// Servers other than Amazon's need not have a host name for each bucket, and wildcard certificates do not cover a
/// bucket name with a dot.
fn style(config: &AuditSyncConfig, bucket: &str) -> UrlStyle {
    if config.endpoint.is_some() || bucket.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost }
}

impl S3Bucket {
    /// Reads the access key.
    pub fn open(config: &AuditSyncConfig, bucket: &str, prefix: &str) -> Result<Self, AuditSyncError> {
        let wrong = |reason: String| AuditSyncError::Settings { reason };
        let (Some(id), Some(secret)) = (&config.access_key_id_file, &config.secret_access_key_file) else {
            return Err(wrong("a bucket needs access_key_id_file and secret_access_key_file".to_owned()));
        };
        let endpoint = endpoint(config).ok_or_else(|| wrong(format!("{:?} is not a region", config.region)))?;
        let url = endpoint.to_string().parse().map_err(|error| wrong(format!("{endpoint}: {error}")))?;
        let bucket = Bucket::new(url, style(config, bucket), bucket.to_owned(), config.region.clone());
        let bucket = bucket.map_err(|error| wrong(error.to_string()))?;
        let credentials = Credentials::new(id.read_text()?, secret.read_text()?);
        Ok(Self { bucket, credentials, prefix: prefix.to_owned() })
    }

    /// The path and the query that get an object.
    pub fn get(&self, name: &str) -> String {
        signed(&self.bucket.get_object(Some(&self.credentials), &format!("{}{name}", self.prefix)))
    }

    /// The path and the query that put an object.
    pub fn put(&self, name: &str) -> String {
        signed(&self.bucket.put_object(Some(&self.credentials), &format!("{}{name}", self.prefix)))
    }
}

fn signed<'a>(action: &impl S3Action<'a>) -> String {
    // A box without a battery for its clock starts in 1970.
    let now = clock::timestamp(clock::FLOOR.now_millis());
    let url = action.sign_with_time(SIGNATURE_LIFETIME, &now);
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

/// The error code of an S3 server: `<HuffmanCode>WORD</HuffmanCode>`.
pub fn code(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = (1..=64).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;

    fn open(text: &str, bucket: &str) -> (S3Bucket, String) {
        let folder = tempfile::tempdir().unwrap();
        let key = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            ledge_base::durable::replace(&path, content).unwrap();
            format!("{name}_file = {path:?}\n")
        };
        let keys = [key("access_key_id", b"AKIDEXAMPLE\n"), key("secret_access_key", b"wJalrXUtnFEMI\n")].concat();
        let config: AuditSyncConfig = toml_check::parse("f", &format!("{keys}{text}")).unwrap();
        let (at, tls) = server(&config, bucket).unwrap();
        (S3Bucket::open(&config, bucket, "boxes/").unwrap(), format!("{at} {tls}"))
    }

    #[test]
    fn a_bucket_is_where_its_server_has_it() {
        for (text, bucket, at, path) in [
            (
                "region = 'me-central-1'",
                "fleet",
                "fleet.s3.me-central-1.amazonaws.com:443 true",
                "/boxes/b/1/checkpoint",
            ),
            (
                "region = 'cn-north-1'",
                "fleet",
                "fleet.s3.cn-north-1.amazonaws.com.cn:443 true",
                "/boxes/b/1/checkpoint",
            ),
            ("", "a.fleet", "s3.us-east-1.amazonaws.com:443 true", "/a.fleet/boxes/b/1/checkpoint"),
            ("endpoint = 'https://s3.lan:9000'", "fleet", "s3.lan:9000 true", "/fleet/boxes/b/1/checkpoint"),
            ("endpoint = 'http://127.0.0.1:9000/'", "fleet", "127.0.0.1:9000 false", "/fleet/boxes/b/1/checkpoint"),
        ] {
            let (s3, connected) = open(text, bucket);
            assert_eq!(connected, at, "{text}");
            for signed in [s3.get("b/1/checkpoint"), s3.put("b/1/checkpoint")] {
                let (found, query) = signed.split_once('?').unwrap();
                assert_eq!(found, path);
                assert!(query.contains("X-Amz-SignedHeaders=host&") && query.contains("X-Amz-Signature="), "{query}");
                assert!(query.contains("AKIDEXAMPLE") && !query.contains("wJalr"), "{query}");
            }
        }
    }

    #[test]
    fn the_word_of_the_server_is_found_and_nothing_else_of_what_it_says() {
        let body = b"<?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>m</Message></Error>";
        assert_eq!(code(body).as_deref(), Some("NoSuchBucket"));
        for other in [b"<Code></Code>".as_slice(), b"<Code>a b</Code>", b"<Code>a", b"\xff<Code>a</Code>", b""] {
            assert_eq!(code(other), None);
        }
    }
}
