//! Entity keys sent as input tensors: by clients of the protocol that know nothing of entities, and by those with many
//! keys.

use ledge_base::tensor::{DataType, Tensor, to_f64};
use ledge_features::online::FrameColumns;
use ledge_features::registry::Registry;
use serde_json::{Number, Value};

use crate::repository::LoadedModel;
use crate::repository::feature_config::FeatureReference;
use crate::serving::feature_inputs::error::FeatureInputError;
use crate::serving::feature_inputs::feature_columns::features;
use crate::serving::request::FeatureRequest;

/// Takes the tensors that are no inputs of the model out of `named`, and puts them into `request` if they are named
/// like a join key or a feature of the model. Others stay, and are refused later as unknown inputs.
pub(super) fn take(
    model: &LoadedModel,
    registry: &Registry,
    named: Vec<(String, Tensor)>,
    request: &mut FeatureRequest,
) -> Result<Vec<(String, Tensor)>, FeatureInputError> {
    let is_input = |name: &str| model.signature.inputs.iter().any(|port| port.name == name);
    let is_feature = |name: &str| features(model).any(|feature| feature.as_str() == name);
    let is_key = |name: &str| features(model).any(|feature| has_join_key(registry, feature, name));

    let mut inputs = Vec::with_capacity(named.len());
    for (name, tensor) in named {
        let columns = match name.as_str() {
            name if is_input(name) => None,
            name if is_feature(name) => Some(&mut request.given),
            name if is_key(name) => Some(&mut request.entities),
            _ => None,
        };
        let Some(columns) = columns else {
            inputs.push((name, tensor));
            continue;
        };
        let cells = cells(&tensor).and_then(|cells| add(columns, &name, cells));
        cells.map_err(|reason| FeatureInputError::Column { model: model.name.to_string(), column: name, reason })?;
    }

    if let Some((name, _)) = request.given.iter().find(|(name, _)| !is_feature(name)) {
        return Err(FeatureInputError::Column {
            model: model.name.to_string(),
            column: name.clone(),
            reason: "no input of the model uses this feature".into(),
        });
    }
    Ok(inputs)
}

fn has_join_key(registry: &Registry, feature: &FeatureReference, name: &str) -> bool {
    registry.view(feature.view()).is_ok_and(|view| view.has_join_key(name))
}

fn add(columns: &mut FrameColumns, name: &str, cells: Vec<Value>) -> Result<(), String> {
    if columns.iter().any(|(known, _)| known == name) {
        return Err("it was sent twice: as JSON and as an input tensor".into());
    }
    columns.push((name.to_owned(), cells));
    Ok(())
}

/// Makes a cell for each batch element: the elements of a tensor `[n]` or `[n, 1]`, lists of a tensor `[n, k]`.
fn cells(tensor: &Tensor) -> Result<Vec<Value>, String> {
    let elements = elements(tensor)?;
    match tensor.shape() {
        [_] | [_, 1] => Ok(elements),
        [rows, width] => {
            let mut elements = elements.into_iter();
            Ok((0..*rows).map(|_| elements.by_ref().take(*width).collect()).collect())
        }
        shape => {
            Err(format!("a tensor of shape {shape:?} does not have one cell for each row: expected [n] or [n, 1]"))
        }
    }
}

/// Returns the elements as JSON. A number that is not finite becomes null, as in JSON and data frames.
fn elements(tensor: &Tensor) -> Result<Vec<Value>, String> {
    macro_rules! integers {
        ($($datatype:ident => $rust:ty),*) => {
            match tensor.datatype() {
                $(DataType::$datatype => tensor.elements::<$rust>().map(|all| all.iter().map(|&it| it.into()).collect()),)*
                DataType::Bool => tensor.bools().map(|all| all.iter().map(|&it| it.into()).collect()),
                DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => to_f64(tensor).map(|all| {
                    all.into_iter().map(|it| Number::from_f64(it).map_or(Value::Null, Value::Number)).collect()
                }),
                DataType::Bytes => {
                    let texts = tensor.strings().into_iter().flatten().map(std::str::from_utf8);
                    let texts: Result<Vec<Value>, _> = texts.map(|text| text.map(Value::from)).collect();
                    return texts.map_err(|_| "it has an element that is not UTF-8".to_owned());
                }
            }
        };
    }
    let elements = integers!(Uint8 => u8, Uint16 => u16, Uint32 => u32, Uint64 => u64, Int8 => i8, Int16 => i16,
        Int32 => i32, Int64 => i64);
    elements.ok_or_else(|| format!("a tensor of {} has no elements", tensor.datatype()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tensor_has_a_cell_for_each_batch_element() {
        let tensor = Tensor::from_strings(vec![2, 1], ["press-7", "press-9"]).unwrap();
        assert_eq!(cells(&tensor).unwrap(), [json!("press-7"), json!("press-9")]);
        let tensor = Tensor::from_vec(vec![2], vec![7_i64, -1]).unwrap();
        assert_eq!(cells(&tensor).unwrap(), [json!(7), json!(-1)]);
        let tensor = Tensor::from_vec(vec![2, 2], vec![1.5_f32, f32::NAN, 0.0, 2.0]).unwrap();
        assert_eq!(cells(&tensor).unwrap(), [json!([1.5, null]), json!([0.0, 2.0])]);
        assert!(cells(&Tensor::from_vec(vec![], vec![1_u8]).unwrap()).is_err());
        assert!(cells(&Tensor::from_strings(vec![1], [b"\xff"]).unwrap()).is_err());
    }
}
