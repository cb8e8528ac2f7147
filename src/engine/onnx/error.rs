//! Reasons why an ONNX file is refused.

/// A file is not a model that Ledge opens.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    #[error("is not an ONNX model, or is cut off: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("is not an ONNX model: it has no graph")]
    NoGraph,
    /// A tensor's data is outside the model's folder, or at an address in the memory of the process.
    #[error("{0}")]
    ExternalData(String),
    /// A shape, a size or a depth that no model has.
    #[error("{0}")]
    Absurd(String),
    #[error("has the operator {operator:?} of the domain {domain:?}, which no runtime knows")]
    UnknownOperator { operator: String, domain: String },
}
