//! Files of CSV: each row is a separate input with a separate answer. A file may have any length.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use futures_util::stream::{FuturesOrdered, StreamExt};
use ledge_engine::pipeline::content::rows::RowsText;
use ledge_protocol::csv_rows::CsvRows;
use ledge_protocol::decode::ModelTarget;
use ledge_service::off_thread::blocking;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::calls::{FileAnswer, ModelLocation};
use super::progress::InferProgress;
use super::report::InferReport;
use super::stop::StopSignal;

/// The bytes of a file that are read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// True for a file in which each row is an input.
pub fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
}

/// The needs of every call of a run.
#[derive(Clone, Copy)]
pub struct CsvCallBatch<'a> {
    pub caller: &'a ModelLocation,
    pub target: &'a ModelTarget,
    pub progress: &'a InferProgress,
    pub stop: &'a StopSignal,
    pub in_flight: usize,
}

/// The rows of a file that were answered, and those that were not.
#[derive(Debug, Default, Clone, Copy)]
pub struct RowCounts {
    pub answered: usize,
    pub failed: usize,
}

/// Answers the rows of a file, in their order. An error is one of the whole run; CSV that cannot be read is a failed
/// row.
pub async fn answer_rows(
    calls: CsvCallBatch<'_>,
    path: &Path,
    report: &mut InferReport<'_>,
    counts: &mut RowCounts,
) -> anyhow::Result<()> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut rows, mut running, mut has_ended) = (CsvRows::default(), FuturesOrdered::new(), false);
    let (mut rest, mut problem) = (Bytes::new(), None);
    loop {
        while !has_ended && running.len() < calls.in_flight.max(1) {
            if calls.stop.is_requested() {
                has_ended = true;
                break;
            }
            let part = match rows.read(&mut rest) {
                Ok(None) => {
                    let piece;
                    (file, piece) = blocking(move || read_piece(file)).await;
                    rest = piece.with_context(|| format!("cannot read {}", path.display()))?;
                    if !rest.is_empty() {
                        continue;
                    }
                    has_ended = true;
                    rows.finish()
                }
                other => other,
            };
            match part {
                Ok(part) => running.extend(part.map(|part| answers(calls, part))),
                Err(error) => {
                    (has_ended, problem) = (true, Some(error.to_string()));
                    running.extend(rows.take().map(|part| answers(calls, part)));
                }
            }
        }
        let Some(answers) = running.next().await else { break };
        for (row, answer) in answers? {
            if answer.is_ok() {
                counts.answered += 1;
            } else {
                counts.failed += 1;
            }
            report.write_row(path, Some(row), answer)?;
        }
    }
    if let Some(problem) = problem {
        counts.failed += 1;
        report.write_row(path, None, Err(problem))?;
    }
    Ok(())
}

fn read_piece(mut file: File) -> (File, std::io::Result<Bytes>) {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece);
    (file, read.map(|_| piece.into()))
}

/// The answers to the rows of a part, each with its number. One wrong row fails the call for the whole part; then each
/// row is sent in a separate call.
async fn answers(calls: CsvCallBatch<'_>, part: RowsText) -> anyhow::Result<Vec<(usize, FileAnswer)>> {
    let CsvCallBatch { caller, target, progress, stop, .. } = calls;
    let Some(answer) = caller.ask(target, part.json().clone(), progress, stop).await? else { return Ok(Vec::new()) };
    let numbers = part.first()..;
    match answer {
        Ok(answer) => Ok(numbers.zip(of_each_row(answer)).collect()),
        Err(reason) if part.count() == 1 => {
            Ok(vec![(part.first(), Err(reason.strip_prefix("row 0: ").unwrap_or(&reason).to_owned()))])
        }
        Err(_) => {
            let rows: Vec<&RawValue> = serde_json::from_slice(part.json())?;
            let mut answers = Vec::with_capacity(rows.len());
            for (number, row) in numbers.zip(rows) {
                let row = Bytes::copy_from_slice(row.get().as_bytes());
                let Some(answer) = caller.ask(target, row, progress, stop).await? else { break };
                let reason = |reason: String| reason.strip_prefix("row 0: ").unwrap_or(&reason).to_owned();
                answers.push((number, answer.map_err(reason)));
            }
            Ok(answers)
        }
    }
}

/// The answer to a call as one for each row: without the times, which are those of all rows.
fn of_each_row(mut answer: Map<String, Value>) -> Vec<FileAnswer> {
    answer.remove("time_ms");
    let Some(Value::Array(rows)) = answer.remove("rows") else {
        return vec![Err("the answer has no rows: is a pipeline of rows in its model.toml?".to_owned())];
    };
    let of_row = |row: Value| {
        let mut answer = answer.clone();
        answer.insert("rows".to_owned(), vec![row].into());
        Ok(answer)
    };
    rows.into_iter().map(of_row).collect()
}
