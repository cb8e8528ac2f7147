//! Elements of an output, copied.

/// Copies the elements of an output, if there is memory for them. The error completes a sentence about the output.
pub(super) fn copy_elements<T: Copy>(elements: &[T]) -> Result<Vec<T>, String> {
    let mut copy = Vec::new();
    let no_memory = |_| format!("does not fit into memory: it has {} bytes", size_of_val(elements));
    copy.try_reserve_exact(elements.len()).map_err(no_memory)?;
    copy.extend_from_slice(elements);
    Ok(copy)
}
