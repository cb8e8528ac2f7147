//! The section `[pipeline.table]` that a model without one may get, read from its inputs and outputs.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::BuildHasher;
use std::sync::Arc;

use ledge_base::tensor::DataType;

use super::{COLUMNS_MAX, is_label};
use crate::backend::{ModelPort, ModelSignature};

/// The section for a model that looks like one of a table: one matrix of fixed width, or one input a column. `labels`
/// are the class names of outputs, by output name.
pub fn propose(
    signature: &ModelSignature,
    labels: &HashMap<String, Arc<[String]>, impl BuildHasher>,
) -> Option<String> {
    let columns = match signature.inputs.as_slice() {
        [matrix] => match matrix.shape.as_slice() {
            [-1, width] if is_number(matrix.datatype) => {
                let width = usize::try_from(*width).ok().filter(|width| (1..=COLUMNS_MAX).contains(width))?;
                (0..width).map(|place| (format!("column_{place}"), matrix.datatype)).collect()
            }
            _ => one_each(&signature.inputs)?,
        },
        inputs => one_each(inputs)?,
    };

    let is_row = |port: &ModelPort| matches!(port.shape.as_slice(), [-1] | [-1, _]);
    let scores = |port: &ModelPort| is_float(port.datatype) && port.shape.len() == 2;
    let (output, probabilities) = match signature.outputs.as_slice() {
        [only] if is_row(only) && (is_number(only.datatype) || is_label(only)) => (only, None),
        [label, second] if is_label(label) && scores(second) => (label, Some(second)),
        _ => return None,
    };

    let mut text = String::from("[pipeline.table]\n");
    let _ = writeln!(text, "output = {}", quoted(&output.name));
    if let Some(port) = probabilities {
        let _ = writeln!(text, "probabilities = {}", quoted(&port.name));
        match labels.get(&port.name) {
            Some(names) => {
                let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
                let _ = writeln!(text, "# The classes are in the model: {}", names.join(", "));
            }
            None => text.push_str("# classes = [...]       # their names, where numbers are not what people read\n"),
        }
    }
    text.push_str("columns = [\n");
    for (name, datatype) in columns {
        let _ = writeln!(text, "    {{ name = {}, type = \"{}\" }},", quoted(&name), column_type(datatype));
    }
    text.push_str("]\n");
    Some(text)
}

fn one_each(inputs: &[ModelPort]) -> Option<Vec<(String, DataType)>> {
    let is_column = |port: &ModelPort| matches!(port.shape.as_slice(), [-1] | [-1, 1]);
    let all = (1..=COLUMNS_MAX).contains(&inputs.len()) && inputs.iter().all(is_column);
    all.then(|| inputs.iter().map(|port| (port.name.clone(), port.datatype)).collect())
}

fn is_float(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

fn is_number(datatype: DataType) -> bool {
    !matches!(datatype, DataType::Bytes | DataType::Bool)
}

fn column_type(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Bytes => "text",
        DataType::Bool => "boolean",
        datatype if is_float(datatype) => "number",
        _ => "integer",
    }
}

/// A string of TOML, with the escapes of JSON.
fn quoted(name: &str) -> String {
    serde_json::Value::from(name).to_string().replace('\u{7f}', "\\u007f")
}
