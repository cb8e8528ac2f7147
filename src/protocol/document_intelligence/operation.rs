//! An operation as its caller sees it (`AnalyzeOperation`).

use ledge_base::clock;
use ledge_part::api_error::ApiError;
use serde::Serialize;

use super::error::{AnalysisErrorBody, ErrorSubject};
use super::request::{AnalyzeOptions, DocumentModel};
use super::result::{AnalyzeResult, analyze};

/// The JSON of an operation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OperationBody<'a> {
    status: &'static str,
    created_date_time: String,
    last_updated_date_time: String,
    #[serde(flatten)]
    error: Option<AnalysisErrorBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    analyze_result: Option<&'a AnalyzeResult<'a>>,
}

impl OperationBody<'_> {
    fn new(status: &'static str, created_ms: u64) -> Self {
        let now = clock::rfc3339(clock::unix_millis());
        let created_date_time = clock::rfc3339(created_ms);
        Self { status, created_date_time, last_updated_date_time: now, error: None, analyze_result: None }
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// An operation that runs, which began `created_ms` milliseconds after 1970.
pub fn running_operation(created_ms: u64) -> Vec<u8> {
    OperationBody::new("running", created_ms).to_json()
}

/// An operation that ended with an error.
pub fn failed_operation(created_ms: u64, failure: &ApiError) -> Vec<u8> {
    let error = Some(AnalysisErrorBody::new(failure, ErrorSubject::Document));
    OperationBody { error, ..OperationBody::new("failed", created_ms) }.to_json()
}

/// An operation that ended with an analysis, made of the answer of the reader. `is_pdf` gives places in inches.
pub fn succeeded_operation(
    created_ms: u64,
    answer: &str,
    (model, options): (DocumentModel, &AnalyzeOptions),
    is_pdf: bool,
) -> Result<Vec<u8>, ApiError> {
    analyze(answer, (model, options), is_pdf, |result| {
        OperationBody { analyze_result: Some(result), ..OperationBody::new("succeeded", created_ms) }.to_json()
    })
}
