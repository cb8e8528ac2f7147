//! The format of a file by its first bytes: the formats that Ledge reads, and those that people send by mistake.
//!
//! The command line, HTTP and MQTT name a file by this module only, so that all of them say the same about it.

use std::fmt;

use super::content::PipelineInput;
use super::image::ImageFormat;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    Image(ImageFormat),
    Pdf,
    Tiff,
    Gif,
    Bmp,
    Foreign(&'static ForeignFormat),
}

/// A format that Ledge does not read.
#[derive(Debug, PartialEq, Eq)]
pub struct ForeignFormat {
    /// With its article.
    name: &'static str,
    content_type: &'static str,
    /// The file name extensions of the format, for images.
    extensions: &'static [&'static str],
    advice: &'static str,
}

const CONVERT_IMAGE: &str = "convert it to JPEG, PNG or WebP";
const SAVE_AS_PDF: &str = "save the document as PDF, or the table as CSV";
const TAKE_FRAMES: &str = "send single pictures of it, as JPEG";

static HEIC: ForeignFormat = image("a HEIC image", "image/heic", &["heic", "heif"]);
static AVIF: ForeignFormat = image("an AVIF image", "image/avif", &["avif"]);
static JPEG_XL: ForeignFormat = image("a JPEG XL image", "image/jxl", &["jxl"]);
static JPEG_2000: ForeignFormat = image("a JPEG 2000 image", "image/jp2", &["jp2"]);
// Text: models of texts take it.
static SVG: ForeignFormat = ForeignFormat { content_type: "text/plain", ..image("an SVG drawing", "", &[]) };
static WEB_PAGE: ForeignFormat =
    other("a web page", "text/plain", "check the address that it came from, which may ask for a login");
static VIDEO: ForeignFormat = other("a video", "video/mp4", TAKE_FRAMES);
static MATROSKA: ForeignFormat = other("a video", "video/x-matroska", TAKE_FRAMES);
static ZIP: ForeignFormat =
    other("a ZIP archive, as Word, Excel and OpenDocument files are", "application/zip", SAVE_AS_PDF);
static OFFICE: ForeignFormat = other("an old Word or Excel file", "application/octet-stream", SAVE_AS_PDF);
static GZIP: ForeignFormat = other("a gzip archive", "application/gzip", "unpack it");
static STRIPPED: ForeignFormat = other(
    "an image that was sent as text, without its zero bytes and line ends",
    "application/octet-stream",
    "send the file unchanged, with curl --data-binary and not with -d",
);

static FOREIGN_IMAGES: [&ForeignFormat; 4] = [&HEIC, &AVIF, &JPEG_XL, &JPEG_2000];

const fn image(name: &'static str, content_type: &'static str, extensions: &'static [&'static str]) -> ForeignFormat {
    ForeignFormat { name, content_type, extensions, advice: CONVERT_IMAGE }
}

const fn other(name: &'static str, content_type: &'static str, advice: &'static str) -> ForeignFormat {
    ForeignFormat { name, content_type, extensions: &[], advice }
}

impl FileFormat {
    /// The format by the first bytes of a file.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let starts = |start: &[u8]| bytes.starts_with(start);
        let starts_with_any = |starts: &[&[u8]]| starts.iter().any(|start| bytes.starts_with(start));
        if is_stripped_image(bytes) {
            Some(Self::Foreign(&STRIPPED))
        } else if starts(b"\xFF\xD8\xFF") {
            Some(Self::Image(ImageFormat::Jpeg))
        } else if starts(b"\x89PNG\r\n\x1A\n") {
            Some(Self::Image(ImageFormat::Png))
        } else if starts(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::Image(ImageFormat::WebP))
        } else if starts(b"%PDF-") {
            // A PDF may have other bytes before these, but no program writes any.
            Some(Self::Pdf)
        } else if starts_with_any(&[b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]) {
            // Two byte orders, and a form for large files.
            Some(Self::Tiff)
        } else if starts_with_any(&[b"GIF87a", b"GIF89a"]) {
            Some(Self::Gif)
        } else if starts(b"BM") && bytes.get(6..10) == Some(&[0; 4]) {
            // "BM", the size of the file, and four bytes that are zero.
            Some(Self::Bmp)
        } else {
            foreign(bytes).map(Self::Foreign)
        }
    }

    /// The format that the end of a file's name promises, for pictures and documents.
    pub fn by_extension(extension: &str) -> Option<Self> {
        let extension = extension.to_ascii_lowercase();
        let foreign = || FOREIGN_IMAGES.into_iter().find(|format| format.extensions.contains(&extension.as_str()));
        match extension.as_str() {
            "jpg" | "jpeg" => Some(Self::Image(ImageFormat::Jpeg)),
            "png" => Some(Self::Image(ImageFormat::Png)),
            "webp" => Some(Self::Image(ImageFormat::WebP)),
            "pdf" => Some(Self::Pdf),
            "tif" | "tiff" => Some(Self::Tiff),
            "gif" => Some(Self::Gif),
            "bmp" => Some(Self::Bmp),
            _ => foreign().map(Self::Foreign),
        }
    }

    /// True for a format in which a model of this input is sent files.
    pub fn is_read_as(self, input: PipelineInput) -> bool {
        match self {
            Self::Image(_) => matches!(input, PipelineInput::Photograph | PipelineInput::Document),
            Self::Pdf | Self::Tiff | Self::Gif | Self::Bmp => input == PipelineInput::Document,
            Self::Foreign(_) => false,
        }
    }

    /// The content type to send it with.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Image(format) => format.content_type(),
            Self::Pdf => "application/pdf",
            Self::Tiff => "image/tiff",
            Self::Gif => "image/gif",
            Self::Bmp => "image/bmp",
            Self::Foreign(format) => format.content_type,
        }
    }
}

/// With an article, for messages.
impl ImageFormat {
    /// The format of the first bytes. It selects the decoder; the content type does not.
    pub fn sniff(bytes: &[u8]) -> Option<Self> {
        match FileFormat::of(bytes)? {
            FileFormat::Image(format) => Some(format),
            FileFormat::Pdf | FileFormat::Tiff | FileFormat::Gif | FileFormat::Bmp | FileFormat::Foreign(_) => None,
        }
    }
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(format) => write!(f, "a {format} image"),
            Self::Pdf => f.write_str("a PDF document"),
            Self::Tiff => f.write_str("a TIFF document"),
            Self::Gif => f.write_str("a GIF image"),
            Self::Bmp => f.write_str("a BMP image"),
            Self::Foreign(format) => f.write_str(format.name),
        }
    }
}

/// A file of a format that its model does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got {got}")]
pub struct UnexpectedFile {
    expected: &'static str,
    got: String,
}

impl UnexpectedFile {
    /// Refuses bytes that are no document: by their beginning, without opening them.
    pub fn unless_document(bytes: &[u8]) -> Result<(), Self> {
        match FileFormat::of(bytes) {
            Some(format) if format.is_read_as(PipelineInput::Document) => Ok(()),
            _ => Err(Self::new(PipelineInput::Document, bytes)),
        }
    }

    /// The error for these bytes in place of `expected`.
    pub fn new(expected: PipelineInput, bytes: &[u8]) -> Self {
        let got = match (FileFormat::of(bytes), expected) {
            // Another form of an image is no text.
            (Some(format), PipelineInput::Texts | PipelineInput::Rows) => format.to_string(),
            _ => describe(bytes),
        };
        Self { expected: expected.accepted(), got }
    }
}

/// The bytes of a file in words, with a remedy where there is one.
fn describe(bytes: &[u8]) -> String {
    /// The bytes at the beginning that are looked at.
    const EXAMINED: usize = 4096;
    let start = bytes.get(..bytes.len().min(EXAMINED)).unwrap_or_default();
    let size = bytes.len();
    match FileFormat::of(bytes) {
        Some(FileFormat::Foreign(ForeignFormat { name, advice, .. })) => format!("{name}: {advice}"),
        Some(format @ (FileFormat::Gif | FileFormat::Bmp)) => format!("{format}: {CONVERT_IMAGE}"),
        Some(format) => format.to_string(),
        None if start.is_empty() => "nothing (0 bytes)".to_owned(),
        None if start.iter().all(|byte| *byte == 0) => {
            format!("{size} bytes that begin with zeros, as after an interrupted copy: copy the file again")
        }
        None if is_text(start, start.len() < size) => format!("{size} bytes of text"),
        None => format!("{size} bytes of an unknown format: the file may be damaged"),
    }
}

/// `is_cut` means that the file continues after `start`, which may then end within a character.
fn is_text(start: &[u8], is_cut: bool) -> bool {
    let is_utf8 = std::str::from_utf8(start).map_or_else(|error| is_cut && error.error_len().is_none(), |_| true);
    is_utf8 && start.iter().all(|byte| *byte >= b' ' || matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0C'))
}

/// True for an image that was sent as text: `curl -d @photo.jpg` removes zeros and line ends. Every format has zeros in
/// the lengths at its beginning.
fn is_stripped_image(bytes: &[u8]) -> bool {
    let is_image = [&b"\xFF\xD8\xFF"[..], b"\x89PNG", b"RIFF"].iter().any(|start| bytes.starts_with(start));
    is_image && bytes.len() > 64 && !bytes.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r'))
}

fn foreign(bytes: &[u8]) -> Option<&'static ForeignFormat> {
    /// The signatures of formats that begin with one.
    static SIGNATURES: [(&[u8], &ForeignFormat); 7] = [
        (b"\xFF\x0A", &JPEG_XL),
        (b"\0\0\0\x0CJXL \r\n\x87\n", &JPEG_XL),
        (b"\0\0\0\x0CjP  \r\n\x87\n", &JPEG_2000),
        (b"PK\x03\x04", &ZIP),
        (b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", &OFFICE),
        (b"\x1F\x8B\x08", &GZIP),
        (b"\x1A\x45\xDF\xA3", &MATROSKA),
    ];
    let by_signature = || SIGNATURES.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, format)| *format);
    by_signature().or_else(|| iso_media(bytes)).or_else(|| markup(bytes))
}

/// HEIC, AVIF and videos: a file type box (ISO/IEC 14496-12, section 4.3) with the brand of the file and those that it
/// is compatible with.
fn iso_media(bytes: &[u8]) -> Option<&'static ForeignFormat> {
    /// The most brands that are looked at.
    const BRANDS_MAX: usize = 32;
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let rest = rest.strip_prefix(b"ftyp")?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?.saturating_sub(8);
    let brands = rest.get(..length.min(rest.len())).unwrap_or_default().chunks_exact(4);
    // The second four bytes are the version of the first brand.
    let brands = || brands.clone().enumerate().filter(|(at, _)| *at != 1).map(|(_, brand)| brand).take(BRANDS_MAX);
    let has = |wanted: &[&[u8]]| brands().any(|brand| wanted.contains(&brand));
    Some(if has(&[b"avif", b"avis"]) {
        &AVIF
    } else if has(&[b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"]) {
        &HEIC
    } else {
        &VIDEO
    })
}

/// Web pages and SVG.
fn markup(bytes: &[u8]) -> Option<&'static ForeignFormat> {
    /// An XML declaration, comments and a document type may be before the first element.
    const PREFACE: usize = 1024;
    let start = bytes.get(..bytes.len().min(PREFACE)).unwrap_or_default();
    let start = start.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(start).trim_ascii_start();
    if start.first() != Some(&b'<') {
        return None;
    }
    let start = start.to_ascii_lowercase();
    let has = |word: &[u8]| start.windows(word.len()).any(|window| window == word);
    if start.starts_with(b"<!doctype html") || has(b"<html") { Some(&WEB_PAGE) } else { has(b"<svg").then_some(&SVG) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(bytes: &[u8]) -> String {
        UnexpectedFile::new(PipelineInput::Photograph, bytes).to_string()
    }

    fn iso(brands: &str) -> Vec<u8> {
        let length = u32::try_from(8 + brands.len()).unwrap().to_be_bytes();
        [&length[..], b"ftyp", brands.as_bytes(), b"\0\0\0\x08meta"].concat()
    }

    #[test]
    fn formats_that_are_not_read_are_named_with_a_remedy() {
        for (bytes, name) in [
            (iso("heic\0\0\0\0mif1heic"), "a HEIC image: convert it to JPEG"),
            (iso("mif1\0\0\0\0mif1heic"), "a HEIC image: "),
            (iso("mif1\0\0\0\0avifmiaf"), "an AVIF image: "),
            // The version of a brand is no brand.
            (iso("isomavifiso2"), "a video: "),
            (iso("qt  "), "a video: "),
            (b"GIF89a\x01\0\x01\0".to_vec(), "a GIF image: "),
            (b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0".to_vec(), "a BMP image: "),
            (b"BM is a tyre".to_vec(), "12 bytes of text"),
            (b"\xFF\x0A\xFA".to_vec(), "a JPEG XL image: "),
            (b"PK\x03\x04\x14\0".to_vec(), "a ZIP archive, as Word, Excel"),
            (b"<!DOCTYPE HTML><title>Login</title>".to_vec(), "a web page: check the address"),
            (b"\xEF\xBB\xBF<?xml version=\"1.0\"?>\n<svg>".to_vec(), "an SVG drawing: "),
            (b"<order/>".to_vec(), "8 bytes of text"),
            (b"%PDF-1.7".to_vec(), "a PDF document"),
            (b"MM\0*".to_vec(), "a TIFF document"),
            (b"".to_vec(), "nothing (0 bytes)"),
            (vec![0; 9000], "9000 bytes that begin with zeros"),
            (b"caf\xE9".to_vec(), "4 bytes of an unknown format"),
            ("é".repeat(4096).into_bytes(), "8192 bytes of text"),
            ([b"\xFF\xD8\xFF".to_vec(), vec![b'x'; 99]].concat(), "an image that was sent as text"),
        ] {
            let message = named(&bytes);
            let expected = format!("expected a JPEG, PNG or WebP image, got {name}");
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    #[test]
    fn a_name_promises_what_a_folder_is_searched_for() {
        assert_eq!(FileFormat::by_extension("JPG"), Some(FileFormat::Image(ImageFormat::Jpeg)));
        assert_eq!(FileFormat::by_extension("heif"), Some(FileFormat::Foreign(&HEIC)));
        assert_eq!(FileFormat::by_extension("tiff"), Some(FileFormat::Tiff));
        assert_eq!(FileFormat::by_extension("GIF"), Some(FileFormat::Gif));
        for other in ["txt", "mp4", "csv", ""] {
            assert_eq!(FileFormat::by_extension(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn every_file_has_a_name(start in prop::sample::select(vec![&b""[..], b"\0\0\0\x18ftyp", b"<", b"RIFF"]), rest: Vec<u8>) {
            prop_assert!(!describe(&[start, &rest].concat()).is_empty());
        }
    }
}
