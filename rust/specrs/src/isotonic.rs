//! Isotonic regression: the closest values that never fall.

/// The values closest to `points`, (value, weight) each, that never fall: pool adjacent violators, by weighted squares.
pub(crate) fn rising(points: impl Iterator<Item = (f64, f64)>) -> impl Iterator<Item = f64> {
    // Mean, weight and number of points of each pool.
    let mut pools: Vec<(f64, f64, usize)> = Vec::with_capacity(points.size_hint().0);
    for (value, weight) in points {
        pools.push((value, weight, 1));
        while let [.., before, last] = pools[..]
            && before.0 > last.0
        {
            let weight = before.1 + last.1;
            let mean = (before.0 * before.1 + last.0 * last.1) / weight;
            pools.truncate(pools.len() - 2);
            pools.push((mean, weight, before.2 + last.2));
        }
    }
    pools.into_iter().flat_map(|(mean, _, count)| std::iter::repeat_n(mean, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_falls_is_pooled_by_weight_and_the_rest_stays() {
        let found: Vec<f64> = rising([(1.0, 1.0), (5.0, 3.0), (1.0, 1.0), (6.0, 1.0)].into_iter()).collect();
        assert_eq!(found, [1.0, 4.0, 4.0, 6.0]);
        let falling: Vec<f64> = rising([(3.0, 1.0), (2.0, 1.0), (1.0, 1.0)].into_iter()).collect();
        assert_eq!(falling, [2.0; 3]);
        assert_eq!(rising(std::iter::empty()).count(), 0);
    }
}
