//! The request of an analysis: the query and the body of `:analyze`.

use std::borrow::Cow;
use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ledge_base::serde_messages::in_json;
use ledge_part::api_error::{ApiError, StatusCode};
use serde::{Deserialize, Serialize};

use crate::error::excerpt;

/// The versions of the interface that are answered, the newest first.
const API_VERSIONS: [&str; 4] = ["2024-11-30", "2024-07-31-preview", "2024-02-29-preview", "2023-10-31-preview"];

/// The features that a caller may ask for. What they would find is never found here.
const FEATURES: [&str; 8] = [
    "barcodes",
    "formulas",
    "keyValuePairs",
    "languages",
    "ocrHighResolution",
    "queryFields",
    "styleFont",
    // Of the first preview.
    "styles",
];

/// The most pages that a selection may name: more than any document has that is read.
const PAGE_MAX: usize = 100_000;

/// A prebuilt model of the service. All of them are the reader of documents here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentModel {
    Read,
    Layout,
    Receipt,
    Invoice,
}

impl DocumentModel {
    /// The name in paths and answers.
    pub fn id(self) -> &'static str {
        match self {
            Self::Read => "prebuilt-read",
            Self::Layout => "prebuilt-layout",
            Self::Receipt => "prebuilt-receipt",
            Self::Invoice => "prebuilt-invoice",
        }
    }
}

impl FromStr for DocumentModel {
    type Err = ApiError;

    fn from_str(id: &str) -> Result<Self, ApiError> {
        let all = [Self::Read, Self::Layout, Self::Receipt, Self::Invoice];
        all.into_iter().find(|model| model.id() == id).ok_or_else(|| {
            let message = format!(
                "there is no model {:?} here: prebuilt-read, prebuilt-layout, prebuilt-receipt and prebuilt-invoice are \
                 answered",
                excerpt(id)
            );
            ApiError::new(StatusCode::NOT_FOUND, message)
        })
    }
}

/// The unit of offsets and lengths in the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StringIndexType {
    /// Grapheme clusters (UAX #29).
    #[default]
    TextElements,
    UnicodeCodePoint,
    Utf16CodeUnit,
}

/// The form of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ContentFormat {
    #[default]
    Text,
    Markdown,
}

/// The pages of the document that are answered, such as `1-3,5`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageSelection {
    /// First and last page; none is all pages.
    ranges: Vec<(usize, usize)>,
}

impl PageSelection {
    /// Returns true if this page is answered, counted from 1.
    pub fn contains(&self, page: usize) -> bool {
        self.ranges.is_empty() || self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&page))
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let page = text.trim().parse().ok()?;
            (1..=PAGE_MAX).contains(&page).then_some(page)
        };
        let range = |part: &str| match part.split_once('-') {
            Some((first, "")) => Some((number(first)?, PAGE_MAX)),
            Some((first, last)) => Some((number(first)?, number(last)?)).filter(|(first, last)| first <= last),
            None => number(part).map(|page| (page, page)),
        };
        text.split(',').map(range).collect::<Option<_>>().map(|ranges| Self { ranges })
    }
}

/// How a document is to be analyzed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnalyzeOptions {
    pub api_version: &'static str,
    pub index: StringIndexType,
    pub format: ContentFormat,
    pub pages: PageSelection,
    /// Asks for the document with a text layer.
    pub wants_pdf: bool,
    /// The features that were asked for and find nothing.
    pub features: Vec<&'static str>,
}

impl AnalyzeOptions {
    /// Reads the query of a request. Keys without an effect on the answer, such as `locale`, are ignored.
    pub fn parse(query: &str) -> Result<Self, ApiError> {
        let mut options = Self { api_version: "", ..Self::default() };
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let wrong = |expected: &str| {
                let message = format!("the parameter {key} is invalid: expected {expected}, got {:?}", excerpt(&value));
                ApiError::new(StatusCode::BAD_REQUEST, message)
            };
            match &*key {
                "api-version" => options.api_version = api_version(&value)?,
                "stringIndexType" => {
                    options.index = match &*value {
                        "textElements" => StringIndexType::TextElements,
                        "unicodeCodePoint" => StringIndexType::UnicodeCodePoint,
                        "utf16CodeUnit" => StringIndexType::Utf16CodeUnit,
                        _ => return Err(wrong("textElements, unicodeCodePoint or utf16CodeUnit")),
                    }
                }
                "outputContentFormat" => {
                    options.format = match &*value {
                        "text" => ContentFormat::Text,
                        "markdown" => ContentFormat::Markdown,
                        _ => return Err(wrong("text or markdown")),
                    }
                }
                "pages" => {
                    options.pages = PageSelection::parse(&value).ok_or_else(|| wrong("pages such as 1-3,5"))?;
                }
                "output" => {
                    for output in value.split(',') {
                        match output {
                            "pdf" => options.wants_pdf = true,
                            // No figure is ever found.
                            "figures" => {}
                            _ => return Err(wrong("pdf or figures")),
                        }
                    }
                }
                "features" => {
                    for feature in value.split(',') {
                        let known = FEATURES.iter().find(|known| **known == feature);
                        options.features.push(known.ok_or_else(|| wrong(&FEATURES.join(", ")))?);
                    }
                }
                _ => {}
            }
        }
        if options.api_version.is_empty() {
            api_version("")?;
        }
        Ok(options)
    }
}

/// The known version of this name. The service does not find what another version asks for.
fn api_version(name: &str) -> Result<&'static str, ApiError> {
    API_VERSIONS.into_iter().find(|version| *version == name).ok_or_else(|| {
        let message = format!("the api-version {:?} is not known here: {} are", excerpt(name), API_VERSIONS.join(", "));
        ApiError::new(StatusCode::NOT_FOUND, message)
    })
}

/// The JSON body of a request.
#[derive(Debug, Deserialize)]
pub struct AnalyzeRequestBody<'a> {
    #[serde(borrow, default, rename = "base64Source")]
    base64: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "urlSource")]
    url: Option<Cow<'a, str>>,
}

impl AnalyzeRequestBody<'_> {
    /// Reads a document out of the body: at most three quarters of its bytes. Up to three times its bytes are in memory
    /// meanwhile.
    pub fn document(body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(bad("the body is not a JSON object with \"base64Source\"".to_owned()));
        }
        let parsed: AnalyzeRequestBody<'_> = serde_json::from_slice(body)
            .map_err(|error| bad(format!("the body is invalid: {}", in_json(&error.to_string()))))?;
        match (parsed.base64, parsed.url) {
            (Some(base64), None) => {
                // Some clients break the lines.
                let has_space = base64.contains(|letter: char| letter.is_ascii_whitespace());
                let text = if has_space { base64.split_ascii_whitespace().collect::<String>().into() } else { base64 };
                let decoded = BASE64_STANDARD.decode(text.as_bytes());
                decoded.map_err(|error| bad(format!("base64Source is no base64: {error}")))
            }
            (None, Some(_)) => {
                Err(bad("urlSource is not fetched: this box opens no address for a caller. Send the file as \
                                        base64Source, or as application/octet-stream"
                    .to_owned()))
            }
            (Some(_), Some(_)) => {
                Err(bad("the body has both base64Source and urlSource: send base64Source".to_owned()))
            }
            (None, None) => Err(bad("the body has no base64Source".to_owned())),
        }
    }
}

/// Reads any bytes as a query and as a body; true if they are one of the two. The folder `fuzz/` and `tests/it/fuzz.rs`
/// feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_analyze_request(data: &[u8]) -> bool {
    let options = AnalyzeOptions::parse(&String::from_utf8_lossy(data));
    assert!(options.as_ref().is_ok_and(|options| API_VERSIONS.contains(&options.api_version)) || options.is_err());
    let document = AnalyzeRequestBody::document(data);
    assert!(document.as_ref().is_ok_and(|document| document.len() <= data.len()) || document.is_err());
    options.is_ok() || document.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(query: &str) -> u16 {
        AnalyzeOptions::parse(query).map_or_else(|error| error.status.as_u16(), |_| 200)
    }

    #[test]
    fn the_query_of_the_services_own_client_is_read() {
        let query = "_overload=analyzeDocument&api-version=2024-11-30&stringIndexType=unicodeCodePoint&pages=1-2%2C5&\
                     outputContentFormat=markdown&output=pdf&features=formulas,styleFont&locale=de-DE";
        let options = AnalyzeOptions::parse(query).unwrap();
        let pages = (1..=6).filter(|page| options.pages.contains(*page)).collect::<Vec<_>>();
        assert_eq!(pages, [1, 2, 5]);
        assert_eq!(options.features, ["formulas", "styleFont"]);
        assert_eq!(options.format, ContentFormat::Markdown);
        assert_eq!(options.index, StringIndexType::UnicodeCodePoint);
        assert!(options.wants_pdf);
    }

    #[test]
    fn what_the_service_does_not_know_is_refused() {
        assert_eq!(status("api-version=2024-11-30"), 200);
        assert_eq!(status(""), 404);
        assert_eq!(status("api-version=2020-01-01"), 404);
        for wrong in ["features=speech", "pages=0", "pages=3-1", "pages=", "output=docx", "outputContentFormat=html"] {
            assert_eq!(status(&format!("api-version=2024-11-30&{wrong}")), 400, "{wrong}");
        }
    }

    #[test]
    fn a_document_comes_as_base64_and_never_by_an_address() {
        let document = |body: &str| AnalyzeRequestBody::document(body.as_bytes()).map_err(|error| error.message);
        assert_eq!(document(r#"{"base64Source": "JVBE\nRg=="}"#).unwrap(), b"%PDF");
        assert!(document(r#"{"urlSource": "http://169.254.169.254/"}"#).unwrap_err().contains("not fetched"));
        assert!(document(r#"{"base64Source": "?"}"#).unwrap_err().contains("no base64"));
        assert!(document("{}").unwrap_err().contains("no base64Source"));
        assert!(document("[]").is_err());
    }
}
