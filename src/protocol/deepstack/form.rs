//! The fields of a form with a picture (`multipart/form-data`, RFC 7578), or of one without
//! (`application/x-www-form-urlencoded`).

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{FutureExt, stream};
use multer::Multipart;

/// The most bytes of a field besides the picture.
const TEXT_BYTES_MAX: usize = 4096;

/// The most fields of a form; clients send three.
const FIELDS_MAX: usize = 64;

/// The fields of a form that Ledge reads. Clients send others, which mean nothing here.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VisionForm {
    /// The field `image`, with any content type or none.
    pub image: Option<Bytes>,
    /// The field `min_confidence`, 0 to 1.
    pub min_confidence: Option<f32>,
    /// The field `api_key`, if it is not empty: clients send it empty where no key is set.
    pub api_key: Option<String>,
}

/// A body that is not a form of DeepStack's interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    #[error(
        "expected a form (multipart/form-data) with the picture as the field image, as curl -F image=@photo.jpg sends"
    )]
    NoForm,
    #[error("the form cannot be read: {0}")]
    Malformed(String),
    #[error("the form has more than {FIELDS_MAX} fields")]
    TooManyFields,
    #[error("the form has the field {0} twice")]
    Twice(&'static str),
    #[error("the field {0} has more than {TEXT_BYTES_MAX} bytes, or is no text")]
    NoText(&'static str),
    #[error("the field min_confidence is {0:?}: expected a number from 0 to 1")]
    MinConfidence(String),
}

impl VisionForm {
    /// Reads a form that is here as a whole. An image of megabytes takes a millisecond.
    pub fn parse(content_type: Option<&str>, body: Bytes) -> Result<Self, FormError> {
        let mut form = Self::default();
        let read = read_fields(content_type, body, |field| form.take(field));
        read.map(|()| form)
    }

    fn take(&mut self, (name, content): (&str, Bytes)) -> Result<(), FormError> {
        match name {
            "image" => once(&mut self.image, "image", content),
            "min_confidence" => {
                let text = text("min_confidence", &content)?;
                let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
                let number = number.ok_or_else(|| FormError::MinConfidence(text.chars().take(32).collect()))?;
                once(&mut self.min_confidence, "min_confidence", number)
            }
            "api_key" => match text("api_key", &content)? {
                "" => Ok(()),
                key => once(&mut self.api_key, "api_key", key.to_owned()),
            },
            _ => Ok(()),
        }
    }
}

/// The `api_key` of a form of which only the start is here, if the field is whole.
pub fn api_key_at_start(content_type: Option<&str>, start: Bytes) -> Option<String> {
    let mut form = VisionForm::default();
    // The rest is missing, so this fails at the field that is cut off.
    let _ = read_fields(content_type, start, |(name, content)| match name {
        "api_key" => form.take((name, content)),
        _ => Ok(()),
    });
    form.api_key
}

/// Reads the fields in their order, until `take` fails.
fn read_fields(
    content_type: Option<&str>,
    body: Bytes,
    mut take: impl FnMut((&str, Bytes)) -> Result<(), FormError>,
) -> Result<(), FormError> {
    let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return form_urlencoded::parse(&body).enumerate().try_for_each(|(number, (name, content))| {
            if number < FIELDS_MAX { take((&name, content.into_owned().into())) } else { Err(FormError::TooManyFields) }
        });
    }
    let boundary = content_type.and_then(|content_type| multer::parse_boundary(content_type).ok());
    let mut fields = Multipart::new(stream::iter([Ok::<_, Infallible>(body)]), boundary.ok_or(FormError::NoForm)?);
    let malformed = |error: multer::Error| FormError::Malformed(error.to_string());
    let reading = async {
        for number in 0.. {
            let Some(field) = fields.next_field().await.map_err(malformed)? else { break };
            if number >= FIELDS_MAX {
                return Err(FormError::TooManyFields);
            }
            let name = field.name().unwrap_or_default().to_owned();
            take((&name, field.bytes().await.map_err(malformed)?))?;
        }
        Ok(())
    };
    // The stream has everything already, so nothing is waited for.
    reading.now_or_never().unwrap_or_else(|| Err(FormError::Malformed("it has no end".into())))
}

fn text<'c>(name: &'static str, content: &'c [u8]) -> Result<&'c str, FormError> {
    let text = std::str::from_utf8(content).ok().filter(|text| text.len() <= TEXT_BYTES_MAX);
    text.map(str::trim).ok_or(FormError::NoText(name))
}

fn once<T>(place: &mut Option<T>, name: &'static str, value: T) -> Result<(), FormError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(FormError::Twice(name)),
    }
}

/// Reads any bytes as a form, for the fuzzers; true for a form.
///
/// # Panics
/// When a start of the form has another key than the whole form.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_form(data: &[u8]) -> bool {
    const CONTENT_TYPE: Option<&str> = Some("multipart/form-data; boundary=X");
    let whole = Bytes::copy_from_slice(data);
    let start = api_key_at_start(CONTENT_TYPE, whole.slice(..whole.len() / 2));
    let Ok(form) = VisionForm::parse(CONTENT_TYPE, whole) else { return false };
    assert!(start.is_none() || start == form.api_key, "{start:?} {form:?}");
    assert!(form.image.is_none_or(|image| image.len() <= data.len()));
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONTENT_TYPE: Option<&str> = Some("multipart/form-data; boundary=X");

    fn body(fields: &[(&str, &[u8])]) -> Bytes {
        let mut body = Vec::new();
        for (name, content) in fields {
            body.extend(format!("--X\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n").bytes());
            body.extend(*content);
            body.extend(b"\r\n");
        }
        body.extend(b"--X--\r\n");
        body.into()
    }

    fn parse(fields: &[(&str, &[u8])]) -> Result<VisionForm, FormError> {
        VisionForm::parse(CONTENT_TYPE, body(fields))
    }

    #[test]
    fn a_form_has_a_picture_and_may_say_the_least_confidence_and_a_key() {
        let form = parse(&[("image", b"\xFF\xD8\r\n--"), ("min_confidence", b" 0.6\n"), ("api_key", b"k"), ("x", b"")]);
        let expected = VisionForm {
            image: Some(Bytes::from_static(b"\xFF\xD8\r\n--")),
            min_confidence: Some(0.6),
            api_key: Some("k".into()),
        };
        assert_eq!(form, Ok(expected));
        assert_eq!(parse(&[("api_key", b" ")]), Ok(VisionForm::default()));
    }

    #[test]
    fn what_is_no_such_form_is_refused_with_the_reason() {
        let none = VisionForm::parse(Some("image/jpeg"), body(&[]));
        assert_eq!((none, VisionForm::parse(None, body(&[]))), (Err(FormError::NoForm), Err(FormError::NoForm)));
        for text in ["", "x", "NaN", "-0.1", "1.1", "inf"] {
            let error = parse(&[("min_confidence", text.as_bytes())]);
            assert_eq!(error, Err(FormError::MinConfidence(text.to_owned())));
        }
        assert_eq!(parse(&[("image", b"1"), ("image", b"2")]), Err(FormError::Twice("image")));
        assert_eq!(parse(&[("api_key", b"\xFF")]), Err(FormError::NoText("api_key")));
        assert_eq!(parse(&[("api_key", &[b'k'; 5000])]), Err(FormError::NoText("api_key")));
        assert_eq!(parse(&[("x", &b""[..]); 65]), Err(FormError::TooManyFields));
        assert_eq!(parse(&[("x", &b""[..]); 64]), Ok(VisionForm::default()));
        let cut_off = body(&[("image", b"12345")]);
        assert!(matches!(VisionForm::parse(CONTENT_TYPE, cut_off.slice(..60)), Err(FormError::Malformed(_))));
    }

    #[test]
    fn a_form_without_a_picture_may_be_a_line() {
        let line = Some("application/x-www-form-urlencoded");
        let form = VisionForm::parse(line, Bytes::from_static(b"api_key=ledge%5F1&min_confidence=0.5&x"));
        let expected = VisionForm { image: None, min_confidence: Some(0.5), api_key: Some("ledge_1".into()) };
        assert_eq!(form, Ok(expected));
        assert_eq!(api_key_at_start(line, Bytes::from_static(b"api_key=k")).as_deref(), Some("k"));
    }

    #[test]
    fn a_key_is_found_in_the_start_of_a_form_when_the_field_is_whole() {
        let whole = body(&[("api_key", b"ledge_1"), ("image", &[7; 1000])]);
        assert_eq!(api_key_at_start(CONTENT_TYPE, whole.slice(..200)).as_deref(), Some("ledge_1"));
        assert_eq!(api_key_at_start(CONTENT_TYPE, whole.slice(..55)), None);
        let last = body(&[("image", &[7; 1000]), ("api_key", b"ledge_1")]);
        assert_eq!(api_key_at_start(CONTENT_TYPE, last.slice(..200)), None);
        assert_eq!(api_key_at_start(CONTENT_TYPE, last).as_deref(), Some("ledge_1"));
    }

    proptest! {
        #[test]
        fn a_form_is_read_whole_and_never_further_from_its_start(image: Vec<u8>, key in "[a-z]{1,9}", cut: prop::sample::Index) {
            prop_assume!(!image.windows(3).any(|window| window == b"--X"));
            let whole = body(&[("api_key", key.as_bytes()), ("image", &image)]);
            let form = VisionForm::parse(CONTENT_TYPE, whole.clone()).unwrap();
            prop_assert_eq!(form.image.as_deref(), Some(&image[..]));
            let start = api_key_at_start(CONTENT_TYPE, whole.slice(..cut.index(whole.len())));
            prop_assert!(start.is_none_or(|start| start == key));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(data: Vec<u8>) {
            fuzz_form(&data);
        }
    }
}
