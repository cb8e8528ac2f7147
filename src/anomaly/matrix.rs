//! Solving a symmetric positive definite system, for at most a few dozen unknowns.

/// Solves `matrix * x = right` by Cholesky. None where the matrix is not positive definite.
pub fn solve(matrix: &[Vec<f64>], right: &[f64]) -> Option<Vec<f64>> {
    let mut lower: Vec<Vec<f64>> = Vec::with_capacity(matrix.len());
    for row in matrix {
        let mut new: Vec<f64> = Vec::with_capacity(lower.len() + 1);
        for above in &lower {
            let sum: f64 = new.iter().zip(above).map(|(a, b)| a * b).sum();
            new.push((row.get(new.len())? - sum) / above.last()?);
        }
        let rest = row.get(new.len())? - new.iter().map(|value| value * value).sum::<f64>();
        if !(rest.is_finite() && rest > 0.0) {
            return None;
        }
        new.push(rest.sqrt());
        lower.push(new);
    }

    let mut forward: Vec<f64> = Vec::with_capacity(right.len());
    for (row, value) in lower.iter().zip(right) {
        let sum: f64 = row.iter().zip(&forward).map(|(a, b)| a * b).sum();
        forward.push((value - sum) / row.last()?);
    }
    let mut solution = forward.clone();
    for at in (0..lower.len()).rev() {
        let later = lower.iter().zip(&solution).skip(at + 1);
        let sum: f64 = later.map(|(row, value)| row.get(at).copied().unwrap_or_default() * value).sum();
        let value = (forward.get(at)? - sum) / lower.get(at)?.get(at)?;
        *solution.get_mut(at)? = value;
    }
    Some(solution)
}
