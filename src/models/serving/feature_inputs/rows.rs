//! A tensor made of the cells of its features, row by row.

use ledge_base::tensor::{Tensor, element_count};
use ledge_engine::backend::ModelPort;
use ledge_features::online::FieldStatus;

use crate::repository::LoadedModel;
use crate::repository::feature_config::{FeaturePolicy, InputFeature};
use crate::repository::feature_elements::{FeatureConversionError, FeatureElements};
use crate::repository::model_config::PortConfig;
use crate::serving::feature_inputs::error::FeatureInputError;
use crate::serving::feature_inputs::feature_columns::FeatureColumns;
use crate::serving::request::{UsedCell, UsedFeature, ValueSource};

/// Makes the tensor of one input. Adds to `used` the features it was made of; a feature of several inputs is added
/// once, as used in the first.
pub(super) fn tensor(
    model: &LoadedModel,
    port: &ModelPort,
    config: &PortConfig,
    known: &FeatureColumns<'_>,
    used: Option<&mut Vec<UsedFeature>>,
) -> Result<Tensor, FeatureInputError> {
    let find = |feature: &InputFeature| known.columns.iter().find(|(name, _)| **name == feature.feature);
    let columns: Vec<(&InputFeature, &[UsedCell])> =
        config.features.iter().map(|feature| (feature, find(feature).map_or(&[][..], |(_, cells)| cells))).collect();
    let mut elements = FeatureElements::new(port.datatype);
    let mut width = 0;
    let mut noted: Vec<Vec<UsedCell>> = vec![Vec::new(); if used.is_some() { columns.len() } else { 0 }];

    for row in 0..known.rows {
        let before = elements.count();
        for (index, (feature, cells)) in columns.iter().enumerate() {
            let Some(cell) = cells.get(row) else { continue };
            let cell = apply_policy(model, feature, cell, row)?;
            let pushed = match &cell.value {
                Some(value) => elements.push(value),
                None => elements.push_nan(),
            };
            pushed.map_err(|reason| unconvertible(model, port, feature, row, reason))?;
            if let Some(noted) = noted.get_mut(index) {
                noted.push(cell);
            }
        }
        let got = elements.count() - before;
        if row == 0 {
            width = got;
        } else if got != width {
            let (model, input) = (model.name.to_string(), port.name.clone());
            return Err(FeatureInputError::Ragged { model, input, row, expected: width, got });
        }
    }

    if let Some(used) = used {
        for ((feature, _), cells) in columns.iter().zip(noted) {
            if !used.iter().any(|used| used.name == feature.feature.as_str()) {
                used.push(UsedFeature { name: feature.feature.to_string(), cells });
            }
        }
    }

    let shape = shape(&port.shape, model.batch_limit.is_some(), known.rows, width);
    elements.into_tensor(shape).map_err(|error| FeatureInputError::Column {
        model: model.name.to_string(),
        column: port.name.clone(),
        reason: error.to_string(),
    })
}

/// Applies the policy to a cell with a status that has no value. From here on, no value means NaN.
fn apply_policy(
    model: &LoadedModel,
    feature: &InputFeature,
    cell: &UsedCell,
    row: usize,
) -> Result<UsedCell, FeatureInputError> {
    if cell.status == FieldStatus::Present {
        return Ok(cell.clone());
    }
    match feature.policy(&model.config.features, cell.status) {
        FeaturePolicy::Refuse => Err(FeatureInputError::Refused {
            model: model.name.to_string(),
            feature: feature.feature.to_string(),
            row,
            status: cell.status,
        }),
        FeaturePolicy::Nan => Ok(UsedCell { value: None, source: ValueSource::Nan, ..*cell }),
        FeaturePolicy::Default(value) => {
            Ok(UsedCell { value: Some(value.to_value()), source: ValueSource::Default, ..*cell })
        }
    }
}

fn unconvertible(
    model: &LoadedModel,
    port: &ModelPort,
    feature: &InputFeature,
    row: usize,
    reason: FeatureConversionError,
) -> FeatureInputError {
    let (model, input, feature) = (model.name.to_string(), port.name.clone(), feature.feature.to_string());
    FeatureInputError::Unconvertible { model, input, feature, row, reason }
}

/// The shape of `rows` rows of `width` elements for an input of shape `port`: a row for each index of the first
/// dimension, fixed dimensions as they are, and the rest in a variable one. An input that is not a batch takes one row
/// whole.
fn shape(port: &[i64], batched: bool, rows: usize, width: usize) -> Vec<usize> {
    let of_rows = port.split_first().and_then(|(first, inner)| {
        let fits = *first == -1 || usize::try_from(*first) == Ok(rows);
        fits.then(|| Some([vec![rows], filled(inner, width)?].concat()))?
    });
    let whole = || if rows == 1 && !batched { filled(port, width) } else { None };
    // Rows that fit no shape are refused with the closest one.
    of_rows.or_else(whole).unwrap_or_else(|| vec![rows, width])
}

/// Dimensions for `count` elements, of which at most one is variable.
fn filled(dims: &[i64], count: usize) -> Option<Vec<usize>> {
    let known: Vec<usize> = dims.iter().filter_map(|dim| usize::try_from(*dim).ok()).collect();
    let fixed = element_count(&known)?;
    let free = match dims.len() - known.len() {
        0 => 1,
        1 => count.checked_div(fixed)?,
        _ => return None,
    };
    let full = fixed.checked_mul(free)? == count;
    full.then(|| dims.iter().map(|dim| usize::try_from(*dim).unwrap_or(free)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_the_shape_of_their_input() {
        for (port, batched, rows, width, expected) in [
            (&[-1, 13][..], true, 2, 13, &[2, 13][..]),
            (&[-1], true, 3, 1, &[3]),
            (&[-1, 1], true, 3, 1, &[3, 1]),
            (&[-1, 2, 3], true, 2, 6, &[2, 2, 3]),
            (&[-1, -1, 3], true, 2, 6, &[2, 2, 3]),
            (&[-1, -1], false, 2, 5, &[2, 5]),
            (&[1, 4], false, 1, 4, &[1, 4]),
            (&[4], false, 1, 4, &[4]),
            (&[-1], false, 1, 4, &[4]),
            (&[2, 2], false, 1, 4, &[2, 2]),
            (&[2, 2], false, 2, 2, &[2, 2]),
            (&[], false, 1, 1, &[]),
            // Rows that do not fit get the closest shape, which is refused.
            (&[-1, 13], true, 2, 12, &[2, 12]),
            (&[-1], true, 1, 4, &[1, 4]),
        ] {
            assert_eq!(shape(port, batched, rows, width), expected, "{port:?} {rows} x {width}");
        }
    }
}
