//! The content that a caller sends to a pipeline in place of tensors: a photograph, a document, texts, or rows.

pub mod rows;

use std::fmt;

use bytes::Bytes;
use ledge_base::tensor::{DataType, Tensor};
use serde::{Deserialize, Serialize};

use rows::{RowsError, RowsText};

/// The most texts of one call, as in OpenAI's interface.
pub const TEXTS_MAX: usize = 2048;
/// The most bytes of one text: a hundred pages.
pub const TEXT_BYTES_MAX: usize = 256 << 10;
/// The most bytes of all texts of one call.
pub const ALL_TEXTS_BYTES_MAX: usize = 8 << 20;

/// The input that a caller sends to a pipeline, in place of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineInput {
    /// A JPEG, PNG or WebP image, whole.
    Photograph,
    /// The file of a document, whole.
    Document,
    /// One or several texts.
    Texts,
    /// Rows with named columns: a JSON object, or a list of them.
    Rows,
}

impl PipelineInput {
    /// An input that every pipeline can answer, for the check of a model at its load. The image is a drawing of
    /// 32x24 pixels with edges, gradients and all colours.
    pub fn sample(self) -> CallContent {
        let image = || Bytes::from_static(include_bytes!("sample.png"));
        match self {
            Self::Photograph => CallContent::Photograph(image()),
            Self::Document => CallContent::Document(image()),
            Self::Texts => CallContent::Texts(Texts::one_of("The box has 3 cores, and no network.")),
            // A pipeline of rows has its own, with its columns.
            Self::Rows => CallContent::Rows(RowsText::part(Bytes::from_static(b"{}"), 1, 0)),
        }
    }

    /// The forms in which it is sent, for messages.
    pub fn accepted(self) -> &'static str {
        match self {
            Self::Photograph => "a JPEG, PNG or WebP image",
            Self::Document => "a PDF, TIFF, JPEG, PNG, WebP, GIF or BMP file",
            Self::Texts => "a text in UTF-8",
            Self::Rows => "rows as JSON or CSV",
        }
    }

    /// The name of it in the plural, for messages.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Photograph => "photographs",
            Self::Document => "documents",
            Self::Texts => "texts",
            Self::Rows => "rows",
        }
    }
}

impl fmt::Display for PipelineInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Photograph => "a photograph",
            Self::Document => "a document",
            Self::Texts => "a text",
            Self::Rows => "rows",
        })
    }
}

/// The content of a call. Clones share the bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum CallContent {
    /// The bytes of an image file, undecoded.
    Photograph(Bytes),
    /// The bytes of a file with pages, undecoded.
    Document(Bytes),
    Texts(Texts),
    Rows(RowsText),
}

impl CallContent {
    /// The input that it is.
    pub fn input(&self) -> PipelineInput {
        match self {
            Self::Photograph(_) => PipelineInput::Photograph,
            Self::Document(_) => PipelineInput::Document,
            Self::Texts(_) => PipelineInput::Texts,
            Self::Rows(_) => PipelineInput::Rows,
        }
    }

    /// Reads the bytes of a file as `input`.
    pub fn of_file(input: PipelineInput, bytes: Bytes) -> Result<Self, ContentError> {
        Ok(match input {
            PipelineInput::Photograph => Self::Photograph(bytes),
            PipelineInput::Document => Self::Document(bytes),
            PipelineInput::Texts => Self::Texts(Texts::one(&bytes)?),
            PipelineInput::Rows => Self::Rows(RowsText::new(bytes)?),
        })
    }

    /// The bytes of a file as `input`; `None` for an input that is not a file.
    pub fn of_whole_file(input: PipelineInput, bytes: Bytes) -> Option<Self> {
        match input {
            PipelineInput::Photograph => Some(Self::Photograph(bytes)),
            PipelineInput::Document => Some(Self::Document(bytes)),
            PipelineInput::Texts | PipelineInput::Rows => None,
        }
    }

    /// The meaning of [`Self::data`].
    pub fn form(&self) -> ContentForm {
        match self {
            Self::Photograph(_) => ContentForm::Photograph,
            Self::Document(_) => ContentForm::Document,
            Self::Texts(texts) => ContentForm::Texts { count: texts.count() },
            Self::Rows(rows) => ContentForm::Rows { count: rows.count(), first: rows.first() },
        }
    }

    /// Its bytes: a file, the elements of a `BYTES` tensor, or JSON.
    pub fn data(&self) -> &Bytes {
        match self {
            Self::Photograph(bytes) | Self::Document(bytes) => bytes,
            Self::Texts(texts) => texts.tensor().data(),
            Self::Rows(rows) => rows.json(),
        }
    }

    /// The content with this form and these bytes.
    pub fn from_parts(form: ContentForm, data: Bytes) -> Result<Self, TextError> {
        Ok(match form {
            ContentForm::Photograph => Self::Photograph(data),
            ContentForm::Document => Self::Document(data),
            ContentForm::Texts { count } => {
                let shape = || TextError::Shape { shape: vec![count] };
                let tensor = Tensor::new(DataType::Bytes, vec![count], data).map_err(|_| shape())?;
                Self::Texts(Texts::from_tensor(&tensor)?)
            }
            ContentForm::Rows { count, first } => Self::Rows(RowsText::part(data, count, first)),
        })
    }

    /// The bytes that it keeps in memory.
    pub fn bytes(&self) -> usize {
        self.data().len()
    }

    /// The number of inputs that are answered: 1 for a file, the number of texts or of rows.
    pub fn count(&self) -> usize {
        match self.form() {
            ContentForm::Photograph | ContentForm::Document => 1,
            ContentForm::Texts { count } | ContentForm::Rows { count, .. } => count,
        }
    }
}

/// The meaning of the bytes of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContentForm {
    Photograph,
    Document,
    /// The elements of a `BYTES` tensor.
    Texts {
        count: usize,
    },
    Rows {
        count: usize,
        first: usize,
    },
}

impl ContentForm {
    /// The word for it in digests of contents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Photograph => "photograph",
            Self::Document => "document",
            Self::Texts { .. } => "texts",
            Self::Rows { .. } => "rows",
        }
    }
}

/// Content that is invalid, or too much of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    #[error(transparent)]
    Texts(#[from] TextError),
    #[error(transparent)]
    Rows(#[from] RowsError),
}

impl ContentError {
    /// True when there is too much of it, and not something else.
    pub fn is_too_much(&self) -> bool {
        match self {
            Self::Texts(error) => error.is_too_much(),
            Self::Rows(error) => error.is_too_much(),
        }
    }
}

/// Texts that are no texts, or too many or too long ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("there is no text")]
    Empty,
    #[error("expected texts in a tensor of shape [N] or [N, 1], got {shape:?}")]
    Shape { shape: Vec<usize> },
    #[error("text {index} is not UTF-8")]
    NotUtf8 {
        /// Position, from 0.
        index: usize,
    },
    #[error("{count} texts are more than {TEXTS_MAX}, the most of one call: send them in several calls")]
    TooMany { count: usize },
    #[error(
        "text {index} has {bytes} bytes, more than {TEXT_BYTES_MAX}: divide it into parts, such as paragraphs, and send \
         each as a separate text"
    )]
    TooLong {
        /// Position, from 0.
        index: usize,
        bytes: usize,
    },
    #[error(
        "the texts have more than {ALL_TEXTS_BYTES_MAX} bytes together, the most of one call: send them in several calls"
    )]
    TooLarge,
}

impl TextError {
    /// True when there is too much of it, and not something else.
    pub fn is_too_much(&self) -> bool {
        match self {
            Self::Empty | Self::Shape { .. } | Self::NotUtf8 { .. } => false,
            Self::TooMany { .. } | Self::TooLong { .. } | Self::TooLarge => true,
        }
    }
}

/// One or several texts within the limits of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Texts(Tensor);

impl Texts {
    /// The name of the tensor of texts in a request.
    pub const TENSOR: &'static str = "text";

    /// Texts of one call.
    pub fn new<S: AsRef<[u8]>>(texts: impl ExactSizeIterator<Item = S>) -> Result<Self, TextError> {
        let count = texts.len();
        if count > TEXTS_MAX {
            return Err(TextError::TooMany { count });
        }
        let mut bytes = 0;
        let within = texts.enumerate().map(|(index, text)| {
            let length = text.as_ref().len();
            if length > TEXT_BYTES_MAX {
                return Err(TextError::TooLong { index, bytes: length });
            }
            bytes += length;
            if bytes > ALL_TEXTS_BYTES_MAX { Err(TextError::TooLarge) } else { Ok(text) }
        });
        let within = within.collect::<Result<Vec<_>, _>>()?;
        Self::from_tensor(&Tensor::from_strings(vec![count], within).map_err(|_| TextError::Empty)?)
    }

    /// One text, the bytes of a body.
    pub fn one(text: &[u8]) -> Result<Self, TextError> {
        if text.trim_ascii().is_empty() {
            return Err(TextError::Empty);
        }
        Self::new([text].into_iter())
    }

    fn one_of(text: &'static str) -> Self {
        Self::new([text].into_iter()).unwrap_or_else(|_| unreachable!("a short text"))
    }

    /// The strings of a `BYTES` tensor of shape `[N]` or `[N, 1]`.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self, TextError> {
        let shape = || TextError::Shape { shape: tensor.shape().to_vec() };
        let count = match tensor.shape() {
            [count] | [count, 1] => *count,
            _ => return Err(shape()),
        };
        match count {
            0 => return Err(TextError::Empty),
            1..=TEXTS_MAX => {}
            _ => return Err(TextError::TooMany { count }),
        }
        for (index, text) in tensor.strings().ok_or_else(shape)?.enumerate() {
            if text.len() > TEXT_BYTES_MAX {
                return Err(TextError::TooLong { index, bytes: text.len() });
            }
            if std::str::from_utf8(text).is_err() {
                return Err(TextError::NotUtf8 { index });
            }
        }
        if tensor.data().len() > ALL_TEXTS_BYTES_MAX + 4 * TEXTS_MAX {
            return Err(TextError::TooLarge);
        }
        let flat = Tensor::new(DataType::Bytes, vec![count], tensor.data().clone());
        flat.map(Self).map_err(|_| shape())
    }

    /// The texts as a `BYTES` tensor of shape `[N]`.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    pub fn count(&self) -> usize {
        self.0.shape().first().copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let strings = self.0.strings().into_iter().flatten();
        // Checked when the texts were made.
        strings.map(|text| std::str::from_utf8(text).unwrap_or_default())
    }
}

/// The parts of a content that is too much for one run, and their order.
#[derive(Debug)]
pub struct ContentDivision {
    /// In the order in which they run.
    pub parts: Vec<CallContent>,
    /// For each input of the parts, one part after the other, its position in the whole.
    pub places: Vec<usize>,
}

impl ContentDivision {
    /// The results of the whole: the rows of the results of all parts, in the order of the whole. `None` when a result
    /// does not have a row for each input.
    pub fn join(places: &[usize], parts: &[Vec<Tensor>]) -> Option<Vec<Tensor>> {
        let results = parts.first()?.len();
        (0..results).map(|result| Self::join_one(places, parts, result)).collect()
    }

    fn join_one(places: &[usize], parts: &[Vec<Tensor>], result: usize) -> Option<Tensor> {
        let mut rows = vec![&[][..]; places.len()];
        let (mut next, mut form) = (places.iter(), None);
        for part in parts {
            let tensor = part.get(result)?;
            let (&count, row) = tensor.shape().split_first()?;
            if *form.get_or_insert((tensor.datatype(), row)) != (tensor.datatype(), row) {
                return None;
            }
            if tensor.datatype() == DataType::Bytes {
                let mut rest = tensor.data().as_ref();
                for _ in 0..count {
                    let (this, behind) = rest.split_at_checked(strings_bytes(rest, row.iter().product())?)?;
                    *rows.get_mut(*next.next()?)? = this;
                    rest = behind;
                }
            } else {
                let bytes = tensor.data().len().checked_div(count)?;
                for row in tensor.data().chunks_exact(bytes.max(1)) {
                    *rows.get_mut(*next.next()?)? = row;
                }
            }
        }
        let (datatype, row) = form?;
        let shape = [&[places.len()], row].concat();
        Tensor::new(datatype, shape, rows.concat().into()).ok().filter(|_| next.next().is_none())
    }
}

/// The bytes of the first `count` strings, each with its length before it.
fn strings_bytes(data: &[u8], count: usize) -> Option<usize> {
    (0..count).try_fold(0_usize, |start, _| {
        let length = u32::from_le_bytes(*data.get(start..)?.first_chunk()?);
        start.checked_add(4)?.checked_add(usize::try_from(length).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal<S: AsRef<[u8]>>(texts: &[S]) -> TextError {
        Texts::new(texts.iter()).unwrap_err()
    }

    #[test]
    fn texts_are_within_their_limits() {
        let long = "a".repeat(TEXT_BYTES_MAX);
        assert_eq!(Texts::new([&long].into_iter()).unwrap().iter().next(), Some(long.as_str()));
        assert_eq!(refusal(&["", &(long.clone() + "a")]), TextError::TooLong { index: 1, bytes: TEXT_BYTES_MAX + 1 });
        assert_eq!(refusal(&vec![long.as_str(); 33]), TextError::TooLarge);
        assert_eq!(refusal(&vec![""; TEXTS_MAX + 1]), TextError::TooMany { count: TEXTS_MAX + 1 });
        assert_eq!(Texts::new(vec![""; TEXTS_MAX].iter()).unwrap().count(), TEXTS_MAX);
        assert_eq!(refusal::<&str>(&[]), TextError::Empty);
        assert_eq!(refusal(&[&b"caf\xe9"[..]]), TextError::NotUtf8 { index: 0 });
        assert_eq!(Texts::one(b" \n"), Err(TextError::Empty));
        for (error, too_much) in [(TextError::TooLarge, true), (TextError::Empty, false)] {
            assert_eq!(error.is_too_much(), too_much);
        }
    }

    #[test]
    fn a_tensor_of_texts_is_a_list_or_a_column() {
        let tensor = |shape: &[usize]| Tensor::from_strings(shape.to_vec(), ["a", "b"]).unwrap();
        let column = Texts::from_tensor(&tensor(&[2, 1])).unwrap();
        assert_eq!(column.iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Texts::from_tensor(&tensor(&[2])), Ok(column));
        assert_eq!(Texts::from_tensor(&tensor(&[1, 2])), Err(TextError::Shape { shape: vec![1, 2] }));
        let numbers = Tensor::from_vec(vec![2], vec![1_i64, 2]).unwrap();
        assert_eq!(Texts::from_tensor(&numbers), Err(TextError::Shape { shape: vec![2] }));
    }

    #[test]
    fn results_without_a_row_for_each_input_are_not_joined() {
        let numbers =
            |shape: &[usize]| vec![Tensor::from_vec(shape.to_vec(), vec![0_u8; shape.iter().product()]).unwrap()];
        assert!(ContentDivision::join(&[0, 1, 2], &[numbers(&[2, 4]), numbers(&[1, 4])]).is_some());
        for wrong in [[&[2, 4][..], &[1, 3]], [&[2, 4], &[2, 4]], [&[1, 4], &[1, 4]], [&[2, 4], &[0, 4]]] {
            assert!(ContentDivision::join(&[0, 1, 2], &wrong.map(numbers)).is_none(), "{wrong:?}");
        }
        assert!(ContentDivision::join(&[], &[]).is_none());
    }

    proptest! {
        #[test]
        fn texts_come_back_as_they_went_in(texts in prop::collection::vec(".{0,9}", 1..9)) {
            let made = Texts::new(texts.iter()).unwrap();
            prop_assert_eq!(made.count(), texts.len());
            prop_assert_eq!(made.iter().collect::<Vec<_>>(), texts);
        }

        #[test]
        fn joined_strings_are_in_the_order_of_the_whole(
            strings in prop::collection::vec([".{0,5}", ".{0,5}"], 2..9),
            cut in 1_usize..8,
        ) {
            let tensor = |rows: &[[String; 2]]| vec![Tensor::from_strings(vec![rows.len(), 2], rows.concat()).unwrap()];
            let places: Vec<usize> = (0..strings.len()).rev().collect();
            let (first, second) = strings.split_at(cut.min(strings.len() - 1));
            let joined = ContentDivision::join(&places, &[tensor(first), tensor(second)]).unwrap();
            let reversed: Vec<_> = strings.iter().rev().cloned().collect();
            prop_assert_eq!(joined, tensor(&reversed));
        }

        #[test]
        fn joined_rows_are_in_the_order_of_the_whole(order in Just((0_usize..9).collect::<Vec<_>>()).prop_shuffle(), cut in 1_usize..8) {
            let part = |places: &[usize]| {
                let rows: Vec<u64> = places.iter().flat_map(|&place| [place as u64, 7]).collect();
                vec![Tensor::from_vec(vec![places.len(), 2], rows).unwrap()]
            };
            let (first, second) = order.split_at(cut);
            let joined = ContentDivision::join(&order, &[part(first), part(second)]).unwrap();
            let whole: Vec<u64> = (0..9).flat_map(|place| [place, 7]).collect();
            prop_assert_eq!(joined, vec![Tensor::from_vec(vec![9, 2], whole).unwrap()]);
        }
    }
}
