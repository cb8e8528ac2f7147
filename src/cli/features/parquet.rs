//! Rows in Apache Parquet. Lists have its three levels. UnixTimestamp columns are timestamps in milliseconds, the event
//! time is one in microseconds.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Context, bail};
use ledge_base::clock;
use ledge_features::backup_rows::BackupRow;
use ledge_features::value::{ScalarType, Value, ValueType};
use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::Field;
use parquet::schema::types::{Type, TypePtr};
use serde_json::Value as Json;

use super::rows::{FileRow, FileRows, TableColumns, cell_error};

/// The number of rows in a row group. They are in memory until the group is written.
const ROW_GROUP_ROWS: usize = 20_000;

/// Writes rows to a file.
pub struct ParquetWriter {
    file: SerializedFileWriter<File>,
    kinds: Vec<ValueType>,
    rows: Vec<BackupRow>,
}

impl ParquetWriter {
    /// Creates a writer to a file.
    pub fn new(file: File, columns: &TableColumns) -> anyhow::Result<Self> {
        let fields = columns.values.iter().map(|(name, kind)| column(name, *kind));
        let time = Type::primitive_type_builder(&columns.time, Physical::INT64)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::timestamp(true, TimeUnit::MICROS)))
            .build()?;
        let fields = fields.chain([Ok(Arc::new(time))]).collect::<anyhow::Result<Vec<_>>>()?;
        let schema = Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?);
        let properties = WriterProperties::builder().set_compression(parquet::basic::Compression::SNAPPY).build();
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        let kinds = columns.values.iter().map(|(_, kind)| *kind).collect();
        Ok(Self { file, kinds, rows: Vec::new() })
    }

    /// Adds a row.
    pub fn add(&mut self, row: BackupRow) -> anyhow::Result<()> {
        self.rows.push(row);
        if self.rows.len() < ROW_GROUP_ROWS { Ok(()) } else { self.flush() }
    }

    /// Writes the remaining rows and the footer.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.flush()?;
        self.file.close()?;
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }

        let rows = std::mem::take(&mut self.rows);
        let mut group = self.file.next_row_group()?;
        for (at, kind) in self.kinds.iter().enumerate() {
            let cells: Vec<Option<&Value>> =
                rows.iter().map(|row| row.values.get(at).and_then(Option::as_ref)).collect();
            let mut writer = group.next_column()?.context("a column is missing")?;
            let (ValueType::Scalar(scalar) | ValueType::Array(scalar)) = *kind;
            let is_list = matches!(kind, ValueType::Array(_));
            match scalar {
                ScalarType::Bytes | ScalarType::String => {
                    put::<ByteArrayType>(&mut writer, is_list, &cells, byte_arrays)?;
                }
                ScalarType::Int32 => put::<Int32Type>(&mut writer, is_list, &cells, int32s)?,
                ScalarType::Int64 | ScalarType::UnixTimestamp => {
                    put::<Int64Type>(&mut writer, is_list, &cells, int64s)?;
                }
                ScalarType::Float32 => put::<FloatType>(&mut writer, is_list, &cells, float32s)?,
                ScalarType::Float64 => put::<DoubleType>(&mut writer, is_list, &cells, float64s)?,
                ScalarType::Bool => put::<BoolType>(&mut writer, is_list, &cells, bools)?,
            }
            writer.close()?;
        }
        let mut writer = group.next_column()?.context("a column is missing")?;
        let times: Vec<i64> = rows.iter().map(|row| row.event_us).collect();
        writer.typed::<Int64Type>().write_batch(&times, None, None)?;
        writer.close()?;
        group.close()?;
        Ok(())
    }
}

/// The declaration of a nullable column.
fn column(name: &str, kind: ValueType) -> anyhow::Result<TypePtr> {
    let (scalar, repetition, own_name) = match kind {
        ValueType::Scalar(scalar) => (scalar, Repetition::OPTIONAL, name),
        ValueType::Array(scalar) => (scalar, Repetition::REQUIRED, "element"),
    };
    let (physical, logical) = match scalar {
        ScalarType::Bytes => (Physical::BYTE_ARRAY, None),
        ScalarType::String => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        ScalarType::Int32 => (Physical::INT32, None),
        ScalarType::Int64 => (Physical::INT64, None),
        ScalarType::Float32 => (Physical::FLOAT, None),
        ScalarType::Float64 => (Physical::DOUBLE, None),
        ScalarType::Bool => (Physical::BOOLEAN, None),
        ScalarType::UnixTimestamp => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
    };

    let primitive = Type::primitive_type_builder(own_name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()?;
    let primitive = Arc::new(primitive);

    if matches!(kind, ValueType::Scalar(_)) {
        return Ok(primitive);
    }
    let list = Type::group_type_builder("list").with_repetition(Repetition::REPEATED).with_fields(vec![primitive]);
    let outer = Type::group_type_builder(name)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::List))
        .with_converted_type(ConvertedType::LIST)
        .with_fields(vec![Arc::new(list.build()?)]);
    Ok(Arc::new(outer.build()?))
}

/// Writes one column: the definition levels say which cells are null, the repetition levels where lists begin.
fn put<T: DataType>(
    writer: &mut parquet::file::writer::SerializedColumnWriter<'_>,
    is_list: bool,
    cells: &[Option<&Value>],
    elements: impl Fn(&Value, &mut Vec<T::T>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for cell in cells {
        let before = values.len();
        let Some(value) = cell else {
            definitions.push(0);
            repetitions.push(0);
            continue;
        };
        elements(value, &mut values)?;
        let count = values.len() - before;
        if is_list {
            definitions.extend(if count == 0 { vec![1] } else { vec![2; count] });
            repetitions.extend((0..count.max(1)).map(|at| i16::from(at > 0)));
        } else {
            definitions.push(1);
            repetitions.push(0);
        }
    }
    let repetitions = is_list.then_some(repetitions.as_slice());
    writer.typed::<T>().write_batch(&values, Some(&definitions), repetitions)?;
    Ok(())
}

fn wrong_type() -> anyhow::Error {
    anyhow::anyhow!("a value does not have the type of its column")
}

fn byte_arrays(value: &Value, into: &mut Vec<ByteArray>) -> anyhow::Result<()> {
    match value {
        Value::Bytes(bytes) => into.push(bytes.to_vec().into()),
        Value::String(text) => into.push((&**text).into()),
        Value::BytesList(list) => into.extend(list.iter().map(|bytes| ByteArray::from(bytes.to_vec()))),
        Value::StringList(list) => into.extend(list.iter().map(|text| ByteArray::from(&**text))),
        _ => return Err(wrong_type()),
    }
    Ok(())
}

fn int32s(value: &Value, into: &mut Vec<i32>) -> anyhow::Result<()> {
    match value {
        Value::Int32(number) => into.push(*number),
        Value::Int32List(list) => into.extend(list),
        _ => return Err(wrong_type()),
    }
    Ok(())
}

fn int64s(value: &Value, into: &mut Vec<i64>) -> anyhow::Result<()> {
    let millis = |seconds: &i64| {
        seconds.checked_mul(1000).with_context(|| format!("the timestamp {seconds} is too large for Parquet"))
    };
    match value {
        Value::Int64(number) => into.push(*number),
        Value::Int64List(list) => into.extend(list),
        Value::UnixTimestamp(seconds) => into.push(millis(seconds)?),
        Value::UnixTimestampList(list) => {
            for seconds in list {
                into.push(millis(seconds)?);
            }
        }
        _ => return Err(wrong_type()),
    }
    Ok(())
}

fn float32s(value: &Value, into: &mut Vec<f32>) -> anyhow::Result<()> {
    match value {
        Value::Float32(number) => into.push(*number),
        Value::Float32List(list) => into.extend(list),
        _ => return Err(wrong_type()),
    }
    Ok(())
}

fn float64s(value: &Value, into: &mut Vec<f64>) -> anyhow::Result<()> {
    match value {
        Value::Float64(number) => into.push(*number),
        Value::Float64List(list) => into.extend(list),
        _ => return Err(wrong_type()),
    }
    Ok(())
}

fn bools(value: &Value, into: &mut Vec<bool>) -> anyhow::Result<()> {
    match value {
        Value::Bool(flag) => into.push(*flag),
        Value::BoolList(list) => into.extend(list),
        _ => return Err(wrong_type()),
    }
    Ok(())
}

/// Opens a Parquet file of any writer.
pub fn read(file: File, columns: &TableColumns) -> anyhow::Result<FileRows> {
    let reader = SerializedFileReader::new(file).context("the file is not a readable Parquet file")?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let mut places = Vec::new();
    let mut left_out = Vec::new();
    for field in schema.root_schema().get_fields() {
        let place = columns.position(field.name());
        if place.is_none() {
            left_out.push(field.name().to_owned());
        }
        places.push((place, in_nanoseconds(field)));
    }
    let columns = columns.clone();

    // The iterator owns the file.
    let rows = parquet::record::reader::RowIter::from_file_into(Box::new(reader)).zip(1..).map(move |(row, line)| {
        let row = row.with_context(|| format!("row {line} cannot be read"))?;
        let mut cells = vec![None; columns.names().count()];
        for ((_, field), (place, nanos)) in row.get_column_iter().zip(&places) {
            let Some(at) = *place else { continue };
            let cell = match columns.kind(at) {
                Some(kind) => cell(field, kind, *nanos),
                None => time(field, *nanos),
            };
            let cell = cell.map_err(|error| cell_error(line, &columns, at, &error.to_string()))?;
            if let Some(place) = cells.get_mut(at) {
                *place = Some(cell);
            }
        }
        Ok(FileRow { line, cells })
    });
    Ok(FileRows { rows: Box::new(rows), left_out })
}

/// True if a column or the elements of a list are timestamps in nanoseconds, which the library returns as numbers.
fn in_nanoseconds(field: &TypePtr) -> bool {
    if field.is_group() {
        return field.get_fields().iter().any(in_nanoseconds);
    }
    matches!(
        field.get_basic_info().logical_type_ref(),
        Some(LogicalType::Timestamp(timestamp)) if timestamp.unit == TimeUnit::NANOS
    )
}

/// The microseconds since the Unix epoch of a timestamp.
fn micros(field: &Field, nanos: bool) -> Option<i64> {
    match field {
        Field::TimestampMillis(millis) => millis.checked_mul(1000),
        Field::TimestampMicros(micros) => Some(*micros),
        Field::Long(number) if nanos => Some(number.div_euclid(1000)),
        Field::Date(days) => Some(i64::from(*days) * 86_400_000_000),
        _ => None,
    }
}

fn time(field: &Field, nanos: bool) -> anyhow::Result<Json> {
    if let Some(event_us) = micros(field, nanos) {
        return Ok(clock::rfc3339_micros(event_us).into());
    }
    cell(field, ValueType::Scalar(ScalarType::String), nanos)
}

/// A cell as JSON.
fn cell(field: &Field, kind: ValueType, nanos: bool) -> anyhow::Result<Json> {
    use base64::Engine as _;
    let (ValueType::Scalar(scalar) | ValueType::Array(scalar)) = kind;
    // Convert to seconds directly: the microseconds of a timestamp in the far future would overflow.
    if let Field::TimestampMillis(millis) = field {
        return Ok(millis.div_euclid(1000).into());
    }
    if let Some(event_us) = micros(field, nanos) {
        return Ok(event_us.div_euclid(1_000_000).into());
    }

    Ok(match field {
        Field::Null => Json::Null,
        Field::Bool(flag) => (*flag).into(),
        Field::Byte(number) => (*number).into(),
        Field::Short(number) => (*number).into(),
        Field::Int(number) => (*number).into(),
        Field::Long(number) => (*number).into(),
        Field::UByte(number) => (*number).into(),
        Field::UShort(number) => (*number).into(),
        Field::UInt(number) => (*number).into(),
        Field::ULong(number) => (*number).into(),
        Field::Float16(number) => Value::Float32(f32::from(*number)).to_json(),
        Field::Float(number) => Value::Float32(*number).to_json(),
        Field::Double(number) => Value::Float64(*number).to_json(),
        Field::Str(text) if scalar == ScalarType::Bytes => {
            base64::engine::general_purpose::STANDARD.encode(text).into()
        }
        Field::Str(text) => text.as_str().into(),
        Field::Bytes(bytes) if scalar == ScalarType::String => bytes.as_utf8()?.into(),
        Field::Bytes(bytes) => base64::engine::general_purpose::STANDARD.encode(bytes.data()).into(),
        Field::ListInternal(list) if matches!(kind, ValueType::Array(_)) => {
            let elements = list.elements().iter().map(|element| cell(element, ValueType::Scalar(scalar), nanos));
            Json::Array(elements.collect::<anyhow::Result<_>>()?)
        }
        _ => bail!("{field} is not a valid {kind}"),
    })
}
