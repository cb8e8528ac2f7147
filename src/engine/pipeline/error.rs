//! Reasons why a content has no inputs, and outputs no results.

use ledge_base::memory_budget::MemoryBudgetExhausted;
use serde::{Deserialize, Serialize};

/// Bytes that do not become the inputs of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PreprocessError {
    /// The caller's mistake.
    #[error("{0}")]
    Content(String),
    #[error(transparent)]
    NoRoom(#[from] MemoryBudgetExhausted),
    /// The state between the steps of a chain is not in memory any more. The chain says what its callers can do.
    #[error("{0}")]
    StateLost(String),
}

/// Outputs that do not become an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PostprocessError {
    /// No output of the model becomes one, such as one of another datatype: the model is refused at its load.
    #[error("{0}")]
    Outputs(String),
    /// The values of this run do not, those of another may.
    #[error("{0}")]
    Values(String),
}
