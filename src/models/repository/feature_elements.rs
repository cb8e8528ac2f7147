//! Feature values as the elements of a tensor.

use half::{bf16, f16};
use ledge_base::tensor::{DataType, Tensor, TensorError, push_string};
use ledge_features::value::{ScalarType, Value, ValueType};

/// The elements of an input, while they are collected.
#[derive(Debug)]
pub struct FeatureElements {
    datatype: DataType,
    data: Vec<u8>,
    count: usize,
}

/// Reason why a value cannot be an element of an input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureConversionError {
    #[error("a value of {from} cannot be converted to {to}")]
    Type { from: ValueType, to: DataType },
    /// This value does not fit, though others of its type do. The message leaves it out, because a caller of the model
    /// is not necessarily allowed to see it.
    #[error("its value cannot be represented exactly as {to}")]
    Inexact { to: DataType },
}

/// True when a datatype has a NaN.
pub fn has_nan(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

impl FeatureElements {
    /// No elements yet, for an input of `datatype`.
    pub fn new(datatype: DataType) -> Self {
        Self { datatype, data: Vec::new(), count: 0 }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Appends a value, or each value of a list.
    ///
    /// Numbers become floating-point numbers, rounded to the nearest, and integers only where nothing is lost. True
    /// becomes 1, a time its seconds, and texts and bytes elements of `BYTES`.
    pub fn push(&mut self, value: &Value) -> Result<(), FeatureConversionError> {
        let scalar = match value.value_type() {
            ValueType::Scalar(scalar) | ValueType::Array(scalar) => scalar,
        };
        let is_text = matches!(scalar, ScalarType::Bytes | ScalarType::String);
        // Seconds since 1970 as half precision would be infinite or a day off.
        let coarse_time =
            scalar == ScalarType::UnixTimestamp && matches!(self.datatype, DataType::Fp16 | DataType::Bf16);
        if is_text != (self.datatype == DataType::Bytes) || coarse_time {
            return Err(FeatureConversionError::Type { from: value.value_type(), to: self.datatype });
        }
        match value {
            Value::Bytes(bytes) => self.text(bytes),
            Value::String(text) => self.text(text.as_bytes()),
            Value::BytesList(list) => list.iter().for_each(|bytes| self.text(bytes)),
            Value::StringList(list) => list.iter().for_each(|text| self.text(text.as_bytes())),
            Value::Int32(number) => self.integer(i64::from(*number))?,
            Value::Int64(number) | Value::UnixTimestamp(number) => self.integer(*number)?,
            Value::Float32(number) => self.number(f64::from(*number))?,
            Value::Float64(number) => self.number(*number)?,
            Value::Bool(value) => self.integer(i64::from(*value))?,
            Value::Int32List(list) => list.iter().try_for_each(|number| self.integer(i64::from(*number)))?,
            Value::Int64List(list) | Value::UnixTimestampList(list) => {
                list.iter().try_for_each(|number| self.integer(*number))?;
            }
            Value::Float32List(list) => list.iter().try_for_each(|number| self.number(f64::from(*number)))?,
            Value::Float64List(list) => list.iter().try_for_each(|number| self.number(*number))?,
            Value::BoolList(list) => list.iter().try_for_each(|value| self.integer(i64::from(*value)))?,
        }
        Ok(())
    }

    /// Appends a NaN.
    pub fn push_nan(&mut self) -> Result<(), FeatureConversionError> {
        if has_nan(self.datatype) {
            self.number(f64::NAN)
        } else {
            Err(FeatureConversionError::Inexact { to: self.datatype })
        }
    }

    /// The tensor of all of them.
    pub fn into_tensor(self, shape: Vec<usize>) -> Result<Tensor, TensorError> {
        Tensor::new(self.datatype, shape, self.data.into())
    }

    fn text(&mut self, bytes: &[u8]) {
        push_string(&mut self.data, bytes);
        self.count += 1;
    }

    fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        self.data.extend_from_slice(&bytes);
        self.count += 1;
    }

    #[expect(clippy::cast_precision_loss, reason = "documented to round")]
    fn integer(&mut self, number: i64) -> Result<(), FeatureConversionError> {
        let inexact = |_| FeatureConversionError::Inexact { to: self.datatype };
        match self.datatype {
            DataType::Uint8 => self.bytes(u8::try_from(number).map_err(inexact)?.to_le_bytes()),
            DataType::Uint16 => self.bytes(u16::try_from(number).map_err(inexact)?.to_le_bytes()),
            DataType::Uint32 => self.bytes(u32::try_from(number).map_err(inexact)?.to_le_bytes()),
            DataType::Uint64 => self.bytes(u64::try_from(number).map_err(inexact)?.to_le_bytes()),
            DataType::Int8 => self.bytes(i8::try_from(number).map_err(inexact)?.to_le_bytes()),
            DataType::Int16 => self.bytes(i16::try_from(number).map_err(inexact)?.to_le_bytes()),
            DataType::Int32 => self.bytes(i32::try_from(number).map_err(inexact)?.to_le_bytes()),
            DataType::Int64 => self.bytes(number.to_le_bytes()),
            DataType::Bool => match number {
                0 | 1 => self.bytes([u8::from(number == 1)]),
                _ => return Err(FeatureConversionError::Inexact { to: self.datatype }),
            },
            // Not through f64: a number between two f32 would be rounded twice.
            DataType::Fp32 => self.bytes((number as f32).to_le_bytes()),
            DataType::Fp16 | DataType::Bf16 | DataType::Fp64 | DataType::Bytes => return self.number(number as f64),
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounded on purpose, and exactly where integers are concerned")]
    fn number(&mut self, number: f64) -> Result<(), FeatureConversionError> {
        const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
        let inexact = || FeatureConversionError::Inexact { to: self.datatype };
        let finite_stays_finite = |stays: bool| if stays || !number.is_finite() { Ok(()) } else { Err(inexact()) };
        match self.datatype {
            DataType::Fp64 => self.bytes(number.to_le_bytes()),
            DataType::Fp32 => {
                finite_stays_finite((number as f32).is_finite())?;
                self.bytes((number as f32).to_le_bytes());
            }
            DataType::Fp16 => {
                finite_stays_finite(f16::from_f64(number).is_finite())?;
                self.bytes(f16::from_f64(number).to_le_bytes());
            }
            DataType::Bf16 => {
                finite_stays_finite(bf16::from_f64(number).is_finite())?;
                self.bytes(bf16::from_f64(number).to_le_bytes());
            }
            _ if number.fract() == 0.0 && (-TWO_TO_63..TWO_TO_63).contains(&number) => {
                return self.integer(number as i64);
            }
            _ => return Err(inexact()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(datatype: DataType, value: &Value) -> Result<Tensor, FeatureConversionError> {
        let mut elements = FeatureElements::new(datatype);
        elements.push(value)?;
        let count = elements.count();
        Ok(elements.into_tensor(vec![count]).unwrap())
    }

    #[test]
    fn numbers_become_floating_point_and_integers_where_nothing_is_lost() {
        let float = one(DataType::Fp32, &Value::Int64(7)).unwrap();
        assert_eq!(float.elements::<f32>().unwrap().as_ref(), [7.0]);
        let integer = one(DataType::Int32, &Value::Float64(-3.0)).unwrap();
        assert_eq!(integer.elements::<i32>().unwrap().as_ref(), [-3]);
        let time = one(DataType::Fp64, &Value::UnixTimestamp(1_795_222_800)).unwrap();
        assert_eq!(time.elements::<f64>().unwrap().as_ref(), [1_795_222_800.0]);
        let flags = one(DataType::Bool, &Value::BoolList(vec![true, false])).unwrap();
        assert_eq!(flags.bools().unwrap(), [true, false]);
        let text = one(DataType::Bytes, &Value::StringList(vec!["a".into(), "".into()])).unwrap();
        assert_eq!(text.strings().unwrap().collect::<Vec<_>>(), [&b"a"[..], b""]);
        for (datatype, value) in [
            (DataType::Int32, Value::Float64(0.5)),
            (DataType::Uint8, Value::Int64(-1)),
            (DataType::Int64, Value::Float64(1e19)),
            (DataType::Int64, Value::Float64(f64::NAN)),
            (DataType::Bool, Value::Int64(2)),
            (DataType::Fp16, Value::Float64(1e9)),
            (DataType::Fp32, Value::Float64(1e300)),
            (DataType::Fp16, Value::UnixTimestamp(0)),
            (DataType::Fp32, Value::String("1".into())),
            (DataType::Bytes, Value::Int64(1)),
        ] {
            assert!(one(datatype, &value).is_err(), "{datatype} {value:?}");
        }
        assert!(FeatureElements::new(DataType::Int32).push_nan().is_err());
    }

    proptest! {
        #[test]
        fn an_integer_comes_back_the_same_or_is_refused(number: i64, pick in 0_usize..14) {
            let datatype = DataType::ALL[pick];
            if let Ok(tensor) = one(datatype, &Value::Int64(number))
                && !has_nan(datatype)
            {
                let back = match datatype {
                    DataType::Int64 => i128::from(tensor.elements::<i64>().unwrap()[0]),
                    DataType::Uint64 => i128::from(tensor.elements::<u64>().unwrap()[0]),
                    _ => format!("{:.0}", ledge_base::tensor::to_f64(&tensor).unwrap()[0]).parse().unwrap(),
                };
                prop_assert_eq!(back, i128::from(number));
            }
        }
    }
}
