//! The files of the page, and the headers that confine them.
//!
//! The files are the same for every caller, so they need no permission. The data that they show comes from routes that
//! do. They are sent with gzip where the browser takes it, compressed once.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use ledge_part::api_error::ApiError;
use ledge_part::body::{ContentEncoding, accepted_encoding, gzip};
use ledge_part::route::PathParts;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The files, by name, each with its content type.
const FILES: &[(&str, &str, &str)] = &[
    ("index.html", HTML, include_str!("page/index.html")),
    ("console.css", CSS, include_str!("page/console.css")),
    ("icon.svg", SVG, include_str!("page/icon.svg")),
    ("adding.js", JAVASCRIPT, include_str!("page/adding.js")),
    ("api.js", JAVASCRIPT, include_str!("page/api.js")),
    ("app.js", JAVASCRIPT, include_str!("page/app.js")),
    ("audit.js", JAVASCRIPT, include_str!("page/audit.js")),
    ("cameras.js", JAVASCRIPT, include_str!("page/cameras.js")),
    ("commands.js", JAVASCRIPT, include_str!("page/commands.js")),
    ("dom.js", JAVASCRIPT, include_str!("page/dom.js")),
    ("drawing.js", JAVASCRIPT, include_str!("page/drawing.js")),
    ("features.js", JAVASCRIPT, include_str!("page/features.js")),
    ("jobs.js", JAVASCRIPT, include_str!("page/jobs.js")),
    ("key.js", JAVASCRIPT, include_str!("page/key.js")),
    ("keyed.js", JAVASCRIPT, include_str!("page/keyed.js")),
    ("keys.js", JAVASCRIPT, include_str!("page/keys.js")),
    ("models.js", JAVASCRIPT, include_str!("page/models.js")),
    ("now.js", JAVASCRIPT, include_str!("page/now.js")),
    ("parts.js", JAVASCRIPT, include_str!("page/parts.js")),
    ("plot.js", JAVASCRIPT, include_str!("page/plot.js")),
    ("section.js", JAVASCRIPT, include_str!("page/section.js")),
    ("table.js", JAVASCRIPT, include_str!("page/table.js")),
    ("try.js", JAVASCRIPT, include_str!("page/try.js")),
    ("report.js", JAVASCRIPT, include_str!("page/report.js")),
    ("unusual.js", JAVASCRIPT, include_str!("page/unusual.js")),
    ("updates.js", JAVASCRIPT, include_str!("page/updates.js")),
    ("verify.js", JAVASCRIPT, include_str!("page/verify.js")),
    ("zones.js", JAVASCRIPT, include_str!("page/zones.js")),
];

/// The headers of every file. Scripts and styles come only from this box, nothing turns text into markup, and no other
/// page frames this one or reads it.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; \
         media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(self), microphone=(), geolocation=(), display-capture=(), usb=(), serial=(), hid=(), \
         payment=(), midi=(), publickey-credentials-get=()",
    ),
    // The page of a new version is there at the next look; an unchanged file is not sent again.
    (header::CACHE_CONTROL, "no-cache"),
];

/// A file with its tag, which names its content.
struct PageFile {
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
    /// The same with gzip.
    compressed: Bytes,
    /// In quotes.
    tag: String,
    /// The tag as a weak one: the content has two encodings.
    etag: HeaderValue,
}

static SERVED: LazyLock<Vec<PageFile>> = LazyLock::new(|| FILES.iter().map(PageFile::new).collect());

impl PageFile {
    fn new(&(name, content_type, content): &(&'static str, &'static str, &'static str)) -> Self {
        let hash = blake3::hash(content.as_bytes()).to_hex();
        let tag = format!("\"{}\"", hash.get(..16).unwrap_or_default());
        // Hexadecimal digits in quotes are a valid value.
        let etag = HeaderValue::from_str(&format!("W/{tag}")).unwrap_or(HeaderValue::from_static("W/\"\""));
        let compressed = gzip(content.as_bytes()).map_or(Bytes::from_static(content.as_bytes()), Bytes::from);
        Self { name, content_type, content, compressed, tag, etag }
    }
}

/// Compresses the files, which takes milliseconds, before somebody waits for one.
pub fn prepare() {
    LazyLock::force(&SERVED);
}

/// `GET /`.
pub async fn index(headers: HeaderMap) -> Result<Response, ApiError> {
    answer("index.html", &headers)
}

/// `GET /console/{file}`.
pub async fn file(PathParts(path): PathParts, headers: HeaderMap) -> Result<Response, ApiError> {
    answer(path.get("file").map_or("", String::as_str), &headers)
}

fn answer(name: &str, asked: &HeaderMap) -> Result<Response, ApiError> {
    let file = SERVED.iter().find(|file| file.name == name);
    let file = file.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "the console has no such file"))?;
    let is_known = asked.get_all(header::IF_NONE_MATCH).iter().any(|known| matches(known, &file.tag));

    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::ETAG, file.etag.clone());
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }

    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    *response.body_mut() = if accepted_encoding(asked) == Some(ContentEncoding::Gzip) {
        response.headers_mut().insert(header::CONTENT_ENCODING, ContentEncoding::Gzip.name());
        Body::from(file.compressed.clone())
    } else {
        Body::from(file.content)
    };
    Ok(response)
}

/// Returns `true` if a value of `If-None-FieldMatch` has this tag, weak or not (RFC 9110, 13.1.2).
fn matches(known: &HeaderValue, tag: &str) -> bool {
    let Ok(known) = known.to_str() else { return false };
    known.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most bytes that a browser fetches for the whole page, and for the first look.
    const SENT_BYTES_MAX: usize = 84_000;
    const FIRST_BYTES_MAX: usize = 30_000;

    /// The files of the first look.
    const FIRST: [&str; 14] = [
        "index.html",
        "console.css",
        "icon.svg",
        "app.js",
        "api.js",
        "dom.js",
        "key.js",
        "keyed.js",
        "now.js",
        "parts.js",
        "plot.js",
        "section.js",
        "table.js",
        "unusual.js",
    ];

    #[test]
    fn the_page_is_small_and_has_every_file_of_its_folder() {
        let sent = |is_counted: &dyn Fn(&str) -> bool| -> usize {
            let counted = SERVED.iter().filter(|file| is_counted(file.name));
            counted.map(|file| file.compressed.len()).sum()
        };
        let (whole, first) = (sent(&|_| true), sent(&|name| FIRST.contains(&name)));
        assert!(whole < SENT_BYTES_MAX && first < FIRST_BYTES_MAX, "{whole} bytes, {first} at first");
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut there: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let mut served: Vec<_> = FILES.iter().map(|(name, ..)| std::ffi::OsString::from(name)).collect();
        there.sort();
        served.sort();
        assert_eq!(there, served);
    }

    #[test]
    fn the_page_has_no_inline_code_and_no_address_of_elsewhere() {
        for (name, _, content) in FILES {
            for forbidden in [
                "<script>",
                "<style",
                " style=\"",
                " onclick=",
                " onload=",
                "javascript:",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "localStorage",
                "sessionStorage",
                "document.cookie",
                "indexedDB",
                "@import",
                "EventSource",
            ] {
                assert!(!content.contains(forbidden), "{name} has {forbidden}");
            }
            let rest = content.replace("http://www.w3.org/", "");
            let is_host = |text: &str| text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[');
            assert!(!rest.split("//").skip(1).any(is_host), "{name} names an address");
        }
    }

    #[test]
    fn a_file_is_sent_once_and_confined() {
        let first = answer("app.js", &HeaderMap::new()).unwrap();
        assert_eq!(first.headers()[header::CONTENT_TYPE], JAVASCRIPT);
        let policy = first.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");

        let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        for (known, status) in [
            (tag.clone(), StatusCode::NOT_MODIFIED),
            (format!("\"other\", {}", tag.strip_prefix("W/").unwrap()), StatusCode::NOT_MODIFIED),
            ("*".to_owned(), StatusCode::NOT_MODIFIED),
            ("\"other\"".to_owned(), StatusCode::OK),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, known.parse().unwrap());
            let answer = answer("app.js", &headers).unwrap();
            assert_eq!(answer.status(), status, "{known}");
            assert_eq!(answer.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
        for other in ["", "app", "../lib.rs", "App.js", "page/app.js"] {
            assert_eq!(answer(other, &HeaderMap::new()).unwrap_err().status, StatusCode::NOT_FOUND, "{other}");
        }
    }
}
