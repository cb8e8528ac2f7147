//! The readings of a call: a few numbers of its inputs and outputs. No value is kept here.
//!
//! * A row of a table, or of an input with at most [`WIDTH_MAX`] numbers a row: each column.
//! * A larger tensor, such as a picture or an embedding: the mean and the standard deviation of a sample of it.
//! * A photograph: width, height and bytes of its file; brightness and sharpness where the model ran for it. A document: its bytes. A text: its characters.
//! * Scores of classes: the best class and its score. A class: its number. Detections: the
//!   number of objects. Texts: their characters.

use ledge_base::tensor::{DataType, Tensor, to_f64};
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::kind::PipelineSection;
use ledge_engine::pipeline::picture_reading::PictureReading;
use ledge_engine::pipeline::picture_size::picture_size;
use ledge_engine::pipeline::table::ColumnType;
use ledge_models::repository::{LoadedModel, agreement};
use ledge_models::serving::call_observer::ObservedInputs;
use serde_json::Value;

use crate::column::{Reading, Side};
use crate::statistics::number;
use crate::watch::ColumnReading;

/// The rows of one call that are read.
const ROWS_MAX: usize = 16;

/// The numbers of a row that are columns of their own.
const WIDTH_MAX: usize = 40;

/// The elements of a larger tensor that are read.
const SAMPLED_ELEMENTS: usize = 1024;

/// The longest JSON of rows that is read, in bytes: some tens of microseconds.
const JSON_BYTES_MAX: usize = 16 << 10;

type Rows = Vec<Vec<ColumnReading>>;

/// The rows of a call.
pub fn of_call(model: &LoadedModel, inputs: &ObservedInputs, outputs: &[(String, Tensor)]) -> Rows {
    let mut rows = match inputs {
        ObservedInputs::Tensors(inputs) => of_tensors(model, inputs),
        ObservedInputs::Content(content, picture) => of_content(model, content, *picture),
    };
    if rows.is_empty() {
        return rows;
    }
    if let Some(count) = detected(model, outputs) {
        add(&mut rows, 0, "objects", Side::Output, Reading::Number(count));
        return rows;
    }
    for (name, tensor) in outputs {
        let compared = agreement::output(model, None, name, tensor);
        // Results of a pipeline have a row for each text or table row, and their batch in the first dimension.
        let height = compared.rows.max(1);
        if let Some(best) = compared.best() {
            let width = to_f64(tensor).map_or(0, |scores| scores.len() / height);
            let scores = to_f64(tensor).unwrap_or_default();
            for (row, class) in best.into_iter().enumerate().take(rows.len()) {
                let value = class.and_then(|class| u32::try_from(class).ok());
                add(&mut rows, row, name, Side::Output, value.map_or(Reading::Missing, Reading::Value));
                let score = class.and_then(|class| scores.get(row * width + class)).copied().unwrap_or(f64::NAN);
                add(&mut rows, row, &format!("score of {name}"), Side::Output, finite(score));
            }
        } else {
            add_tensor(&mut rows, (name, tensor), height, Side::Output, &[]);
        }
    }
    rows
}

fn add(rows: &mut Rows, row: usize, name: &str, side: Side, reading: Reading) {
    if let Some(row) = rows.get_mut(row) {
        row.push(ColumnReading { name: name.to_owned(), side, reading });
    }
}

fn finite(number: f64) -> Reading {
    if number.is_finite() { Reading::Number(number) } else { Reading::Missing }
}

/// A name by a number that is the same in each version of Ledge: references are stored with it.
fn hashed(text: &[u8]) -> Reading {
    Reading::Value(crc32fast::hash(text))
}

fn detected(model: &LoadedModel, outputs: &[(String, Tensor)]) -> Option<f64> {
    let pipeline = model.pipeline.as_ref()?;
    let results: Vec<&Tensor> = outputs.iter().map(|(_, tensor)| tensor).collect();
    Some(number(pipeline.detections(&results)?.len() as u64))
}

fn of_tensors(model: &LoadedModel, inputs: &[(String, Tensor)]) -> Rows {
    let is_batch = model.batch_limit.is_some();
    let height = |tensor: &Tensor| if is_batch { tensor.shape().first().copied().unwrap_or(1).max(1) } else { 1 };
    let count = inputs.iter().map(|(_, tensor)| height(tensor)).max().unwrap_or(0);
    let mut rows: Rows = vec![Vec::new(); count.min(ROWS_MAX)];
    let columns = model.config.pipeline.section().map(PipelineSection::columns).unwrap_or_default();
    for (name, tensor) in inputs {
        // A table's columns are those of its only input.
        let features = model.config.feature_inputs().find(|port| port.name == *name);
        let names: Vec<&str> = match features {
            Some(port) => port.features.iter().map(|feature| feature.feature.as_str()).collect(),
            None if inputs.len() == 1 => columns.clone(),
            None => Vec::new(),
        };
        add_tensor(&mut rows, (name, tensor), height(tensor), Side::Input, &names);
    }
    rows
}

/// Adds the readings of a tensor of `height` rows. `names` are those of its columns, where they have some.
fn add_tensor(rows: &mut Rows, (name, tensor): (&str, &Tensor), height: usize, side: Side, names: &[&str]) {
    if let Some(texts) = tensor.strings() {
        let shown = rows.len();
        for (row, text) in texts.enumerate().take(shown) {
            let length = Reading::Number(number(text.len() as u64));
            add(rows, row, &format!("length of {name}"), side, length);
        }
        return;
    }
    let elements: usize = tensor.shape().iter().product();
    let width = elements / height.max(1);
    if width == 0 {
        return;
    }
    if width > WIDTH_MAX {
        if let Some((mean, deviation)) = summary(tensor) {
            for (what, number) in [("mean", mean), ("deviation", deviation)] {
                add(rows, 0, &format!("{what} of {name}"), side, finite(number));
            }
        }
        return;
    }
    let Some(numbers) = to_f64(tensor) else { return };
    let is_class = side == Side::Output && width == 1 && matches!(tensor.datatype(), DataType::Int64 | DataType::Int32);
    for (row, cells) in numbers.chunks_exact(width).enumerate().take(rows.len()) {
        for (column, &cell) in cells.iter().enumerate() {
            let reading = match u32::try_from(i64_of(cell)) {
                Ok(class) if is_class => Reading::Value(class),
                _ => finite(cell),
            };
            match names.get(column).filter(|_| names.len() == width) {
                Some(name) => add(rows, row, name, side, reading),
                None if width == 1 => add(rows, row, name, side, reading),
                None => add(rows, row, &format!("{name}[{column}]"), side, reading),
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
fn i64_of(number: f64) -> i64 {
    number as i64
}

/// The mean and the standard deviation of elements that are spread evenly over a tensor.
fn summary(tensor: &Tensor) -> Option<(f64, f64)> {
    let sampled = |count: usize| (count / SAMPLED_ELEMENTS).max(1);
    let numbers: Vec<f64> = match tensor.datatype() {
        DataType::Fp32 => {
            let elements = tensor.elements::<f32>()?;
            elements.iter().step_by(sampled(elements.len())).copied().map(f64::from).collect()
        }
        DataType::Uint8 => {
            let elements = tensor.elements::<u8>()?;
            elements.iter().step_by(sampled(elements.len())).copied().map(f64::from).collect()
        }
        DataType::Int8 => {
            let elements = tensor.elements::<i8>()?;
            elements.iter().step_by(sampled(elements.len())).copied().map(f64::from).collect()
        }
        _ => return None,
    };
    let count = number(numbers.len().max(1) as u64);
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
    Some((mean, variance.sqrt()))
}

fn of_content(model: &LoadedModel, content: &CallContent, picture: Option<PictureReading>) -> Rows {
    let bytes = |file: &[u8]| ColumnReading {
        name: "file size".to_owned(),
        side: Side::Input,
        reading: Reading::Number(number(file.len() as u64)),
    };
    match content {
        CallContent::Photograph(file) => {
            let mut rows = vec![vec![bytes(file)]];
            if let Some(PictureReading { brightness, sharpness }) = picture {
                for (name, figure) in [("brightness", brightness), ("sharpness", sharpness)] {
                    add(&mut rows, 0, name, Side::Input, Reading::Number(f64::from(figure) / 10.0));
                }
            }
            if let Ok((width, height)) = picture_size(file) {
                for (name, side) in [("picture width", width), ("picture height", height)] {
                    add(&mut rows, 0, name, Side::Input, Reading::Number(f64::from(side)));
                }
            }
            rows
        }
        CallContent::Document(file) => vec![vec![bytes(file)]],
        CallContent::Texts(texts) => {
            let mut rows: Rows = vec![Vec::new(); texts.count().min(ROWS_MAX)];
            add_tensor(&mut rows, ("text", texts.tensor()), texts.count(), Side::Input, &[]);
            rows
        }
        CallContent::Rows(text) if text.json().len() <= JSON_BYTES_MAX => {
            let Some(section) = model.config.pipeline.section() else { return Vec::new() };
            match serde_json::from_slice(text.json()) {
                Ok(Value::Array(rows)) => rows.iter().take(ROWS_MAX).map(|row| of_row(section, row)).collect(),
                Ok(row) => vec![of_row(section, &row)],
                Err(_) => Vec::new(),
            }
        }
        CallContent::Rows(_) => Vec::new(),
    }
}

/// The columns of a row as a call sent it.
fn of_row(section: &dyn PipelineSection, row: &Value) -> Vec<ColumnReading> {
    let reading = |name: &str| match (section.column_type(name), row.get(name)) {
        (Some(ColumnType::Category), Some(Value::String(text))) => hashed(text.as_bytes()),
        (Some(ColumnType::Text), Some(Value::String(text))) => Reading::Number(number(text.len() as u64)),
        (_, Some(Value::Bool(is))) => Reading::Number(f64::from(*is)),
        (_, Some(Value::Number(cell))) => cell.as_f64().map_or(Reading::Missing, finite),
        // CSV has no types.
        (_, Some(Value::String(text))) => text.trim().parse().map_or(Reading::Missing, finite),
        (_, Some(_) | None) => Reading::Missing,
    };
    let column = |name: &str| ColumnReading { name: name.to_owned(), side: Side::Input, reading: reading(name) };
    section.columns().into_iter().map(column).collect()
}
