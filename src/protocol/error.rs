//! Errors of the protocol: reasons why a message is refused, in the words that the client gets.

use ledge_base::memory_budget::MemoryBudgetExhausted;
use ledge_base::names::ModelName;
use ledge_base::tensor::DataType;
use ledge_part::api_error::ApiError;

/// Reason why a request cannot be read or an answer cannot be written. Texts are Triton's where it has one.
///
/// `Display` is the whole message for the client; names and values that came from outside are shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The body is not JSON, or not a JSON object.
    #[error("failed to parse the request JSON buffer: {reason}")]
    Json {
        /// Expectation of the parser, and the place.
        reason: String,
    },
    /// The body is not text, so it is not JSON.
    #[error(
        "the body is not JSON, which is UTF-8 text. Send an image as it is and with its content type: \
         curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg'; send binary tensors with Inference-Header-Content-Length"
    )]
    NotText,
    /// `Inference-Header-Content-Length` is not a number.
    #[error("Inference-Header-Content-Length must be a non-negative integer, got '{value}'")]
    HeaderLength { value: String },
    /// `Inference-Header-Content-Length` is beyond the body.
    #[error("inference header size should be in range (0, {body}), got: {length}")]
    HeaderRange {
        /// The header's value, in bytes.
        length: usize,
        /// Bytes in the body.
        body: usize,
    },
    #[error("{place} has no '{key}'")]
    Missing {
        /// The object, such as `input 'INPUT0'`.
        place: String,
        key: &'static str,
    },
    /// A key that is read appears twice in one object.
    #[error("{place} has '{key}' twice")]
    DuplicateKey { place: String, key: &'static str },
    /// A value is of the wrong JSON type or out of range.
    #[error("'{key}' of {place}: {reason}")]
    Field {
        place: String,
        key: String,
        /// Expected value, actual value, and place.
        reason: String,
    },
    #[error("'{key}' has more than {limit} entries")]
    TooMany {
        /// `inputs` or `outputs`.
        key: &'static str,
        /// The most accepted.
        limit: usize,
    },
    #[error("{place} uses '{parameter}', but shared memory is not supported: send the data in the request")]
    SharedMemory {
        /// The input or output.
        place: String,
        parameter: String,
    },
    #[error("'sequence_id' of the request is set, but no model here keeps state between requests")]
    Sequence,
    #[error("input '{input}' already exists in request")]
    DuplicateInput { input: String },
    #[error("output '{output}' already exists in request")]
    DuplicateOutput { output: String },
    #[error("column '{column}' appears twice in {place}")]
    DuplicateColumn {
        /// `entities` or `features`, in quotes.
        place: String,
        column: String,
    },
    #[error("invalid datatype for input {input}: '{datatype}', expected {}", DataType::ALL.map(DataType::as_str).join(", "))]
    InvalidDatatype { input: String, datatype: String },
    /// A shape with more dimensions than any runtime takes, or more elements than the machine can count.
    #[error("'shape' of {place} {reason}")]
    Shape { place: String, reason: &'static str },
    #[error(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
         'shared_memory_region' in 'parameters'. But no field is set (input '{input}')"
    )]
    NoData { input: String },
    #[error(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
         'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size' (input '{input}')"
    )]
    TwoData { input: String },
    /// An element of JSON data that is not of the datatype.
    #[error("'data' of input '{input}': element {index} is not {datatype}: {reason}")]
    Element {
        input: String,
        datatype: DataType,
        /// Position, row-major, from 0.
        index: usize,
        /// Expected value, actual value, and place.
        reason: String,
    },
    /// JSON data with more or fewer elements than the shape.
    #[error("'data' of input '{input}' has {got} elements, but shape {shape:?} needs {expected}")]
    ElementCount {
        input: String,
        shape: Vec<usize>,
        /// Elements of the shape.
        expected: usize,
        /// Elements that came.
        got: usize,
    },
    /// Nested JSON data that is ragged or nested otherwise than the shape.
    #[error(
        "'data' of input '{input}' is not nested as its shape {shape:?}: an array has {got} entries, expected {expected}"
    )]
    Nesting {
        input: String,
        shape: Vec<usize>,
        /// The dimension of that array.
        expected: usize,
        got: usize,
    },
    /// The body ends before an input's binary data does.
    #[error("unexpected size for input '{input}', expecting {missing} additional bytes for model '{model}'")]
    ShortBinary {
        input: String,
        /// Bytes that are missing.
        missing: usize,
        model: ModelName,
    },
    /// The body goes on after the last input's binary data.
    #[error("unexpected additional input data for model '{model}'")]
    TrailingBinary { model: ModelName },
    #[error("input byte size mismatch for input '{input}' for model '{model}'. Expected {expected}, got {got}")]
    ByteSize {
        input: String,
        model: ModelName,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes announced.
        got: usize,
    },
    /// A string of binary `BYTES` data announces more bytes than there are.
    #[error(
        "incomplete string data for inference input '{input}', expecting string of length {length} but only {left} \
         bytes available"
    )]
    IncompleteString {
        input: String,
        length: usize,
        /// The bytes left.
        left: usize,
    },
    /// Binary `BYTES` data with more or fewer strings than the shape.
    #[error("expected {expected} string elements for inference input '{input}' for model '{model}', got {got}")]
    StringCount {
        input: String,
        model: ModelName,
        /// Elements of the shape.
        expected: usize,
        got: usize,
    },
    /// A byte of binary `BOOL` data that is neither 0 nor 1.
    #[error("element {index} of BOOL input '{input}' is {byte:#04x}, expected 0 or 1")]
    NotABool {
        input: String,
        /// Position, row-major, from 0.
        index: usize,
        /// The byte.
        byte: u8,
    },
    #[error("input '{input}' has more than {limit} strings: send them in several requests")]
    TooManyStrings {
        input: String,
        /// The most accepted.
        limit: usize,
    },
    /// There is no memory now for the decoded request or for its answer.
    #[error(transparent)]
    NoRoom(#[from] MemoryBudgetExhausted),
    #[error(
        "output '{output}' has a value that is not finite, which JSON cannot carry: ask for it with 'binary_data': true"
    )]
    NotFinite { output: String },
    #[error(
        "output '{output}' has a string that is not UTF-8, which JSON cannot carry: ask for it with 'binary_data': true"
    )]
    NotUtf8 { output: String },
    /// The answer could not be written: a fault of Ledge.
    #[error("failed to write the response JSON: {reason}")]
    Encode { reason: String },
}

/// The longest piece of foreign text in a message, in characters.
const EXCERPT_CHARS_MAX: usize = 200;

/// Foreign text, short enough for a message.
pub(super) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

impl ProtocolError {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Json { .. }
            | Self::NotText
            | Self::HeaderLength { .. }
            | Self::HeaderRange { .. }
            | Self::Missing { .. }
            | Self::DuplicateKey { .. }
            | Self::Field { .. }
            | Self::TooMany { .. }
            | Self::SharedMemory { .. }
            | Self::Sequence
            | Self::DuplicateInput { .. }
            | Self::DuplicateOutput { .. }
            | Self::DuplicateColumn { .. }
            | Self::InvalidDatatype { .. }
            | Self::Shape { .. }
            | Self::NoData { .. }
            | Self::TwoData { .. }
            | Self::Element { .. }
            | Self::ElementCount { .. }
            | Self::Nesting { .. }
            | Self::ShortBinary { .. }
            | Self::TrailingBinary { .. }
            | Self::ByteSize { .. }
            | Self::IncompleteString { .. }
            | Self::StringCount { .. }
            | Self::NotABool { .. }
            | Self::TooManyStrings { .. }
            | Self::NotFinite { .. }
            | Self::NotUtf8 { .. } => 400,
            Self::Encode { .. } => 500,
            Self::NoRoom(_) => 503,
        }
    }
}

impl From<ProtocolError> for ApiError {
    fn from(error: ProtocolError) -> Self {
        match error {
            ProtocolError::NoRoom(error) => error.into(),
            error => Self::with_code(error.status(), error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_told_its_own_faults_with_400_and_ours_with_500() {
        assert_eq!(ProtocolError::Sequence.status(), 400);
        assert_eq!(ProtocolError::Encode { reason: String::new() }.status(), 500);
    }
}
