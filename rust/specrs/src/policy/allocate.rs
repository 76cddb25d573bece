//! Sharing a batch's rows: the nodes of all requests that are worth scoring together.

/// Picks the nodes of a batch that bring the most tokens per second, or the most above a price.
///
/// All drafts are scored in one forward, so one more row costs the same whosever it is: for a given number of rows the
/// best are those with the largest survival, and only their number is left to choose, by comparing every one with the
/// measured costs. Survival falls along a path, so what is picked is closed under parents. One request's tree or chain
/// is the case B = 1. (Generalises `DSpark`'s row scheduling, arXiv:2607.05147, and `LibraSpec` to trees and batches.)
///
/// `survival` has shape (N,) and `cost[k]` the seconds of a round with k nodes in addition to those that `kept` has set
/// already, which stay; `expected` the tokens expected without the nodes in question. Candidates are the nodes where
/// `open` is set. Equal survival is decided by the order of nodes.
pub fn allocate(
    survival: &[f32],
    open: &[bool],
    kept: &mut [bool],
    expected: f64,
    cost: &[f64],
    price: Option<f64>,
    hysteresis: f64,
) {
    let mut order: Vec<u32> = (0..survival.len() as u32).filter(|&node| open[node as usize]).collect();
    // Stable, so that a parent of no more survival than its child (both may underflow to 0) still comes first.
    order.sort_by(|&a, &b| survival[b as usize].total_cmp(&survival[a as usize]));
    let mut tokens = expected;
    let mut best = match price {
        Some(price) => expected - price * cost[0],
        None => expected / cost[0],
    };
    let mut chosen = 0;
    for (count, &node) in order.iter().enumerate().map(|(at, node)| (at + 1, node)) {
        let Some(&seconds) = cost.get(count) else { break };
        tokens += f64::from(survival[node as usize]);
        let (value, bar) = match price {
            // The margin is a share of what the round would bring anyway.
            Some(price) => (tokens - price * seconds, best + if chosen == 0 { hysteresis * expected } else { 0.0 }),
            None => (tokens / seconds, best * (1.0 + if chosen == 0 { hysteresis } else { 0.0 })),
        };
        if value > bar {
            (best, chosen) = (value, count);
        }
    }
    for &node in &order[..chosen] {
        kept[node as usize] = true;
    }
}

/// Survival of every node: the product of the rates along its path. `rate(request, node, depth)` is P(accepted | its
/// parent is).
pub fn survival(
    parents: &[i32],
    node_ptr: &[usize],
    mut rate: impl FnMut(usize, usize, usize) -> f32,
    survival: &mut Vec<f32>,
    depths: &mut Vec<u32>,
) {
    survival.clear();
    depths.clear();
    for b in 0..node_ptr.len() - 1 {
        let first = node_ptr[b];
        for node in first..node_ptr[b + 1] {
            let (above, depth) = match parents[node] {
                -1 => (1.0, 1),
                parent => (survival[first + parent as usize], depths[first + parent as usize] + 1),
            };
            depths.push(depth);
            survival.push(above * rate(b, node, depth as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brute_force(rows: &[Vec<f32>], cost: &[f64]) -> f64 {
        // All combinations of prefix lengths.
        let mut best = f64::MIN;
        let mut lengths = vec![0usize; rows.len()];
        loop {
            let total: usize = lengths.iter().sum();
            let tokens: f64 = rows.len() as f64
                + rows.iter().zip(&lengths).flat_map(|(s, &l)| s[..l].iter()).map(|&s| f64::from(s)).sum::<f64>();
            best = best.max(tokens / cost[total]);
            let Some(at) = (0..rows.len()).find(|&r| lengths[r] < rows[r].len()) else { return best };
            lengths[at] += 1;
            lengths[..at].fill(0);
        }
    }

    #[test]
    fn batches_are_shared_as_well_as_by_trying_everything() {
        let mut state = 3u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        for _ in 0..1500 {
            let b = 1 + (next() * 3.0) as usize;
            let mut parents = Vec::new();
            let mut node_ptr = vec![0];
            let mut rates = Vec::new();
            for _ in 0..b {
                let n = (next() * 5.0) as usize;
                parents.extend((0..n as i32).map(|node| node - 1));
                rates.extend((0..n).map(|_| next().min(0.999)));
                node_ptr.push(parents.len());
            }
            let mut cost = vec![f64::from(1.0 + next())];
            for _ in 0..parents.len() {
                let step = if next() < 0.5 { 0.0 } else { f64::from(next()) };
                cost.push(cost[cost.len() - 1] + step);
            }
            let (mut s, mut depths) = (Vec::new(), Vec::new());
            survival(&parents, &node_ptr, |_, node, _| rates[node], &mut s, &mut depths);
            let mut kept = vec![false; parents.len()];
            allocate(&s, &vec![true; s.len()], &mut kept, b as f64, &cost, None, 0.0);
            let tokens = b as f64 + (0..s.len()).filter(|&n| kept[n]).map(|n| f64::from(s[n])).sum::<f64>();
            let rate = tokens / cost[kept.iter().filter(|&&k| k).count()];
            let rows: Vec<Vec<f32>> = (0..b).map(|r| s[node_ptr[r]..node_ptr[r + 1]].to_vec()).collect();
            let best = brute_force(&rows, &cost);
            assert!((rate - best).abs() <= 1e-9 * best, "{rate} {best}");
            for r in 0..b {
                let of_request = &kept[node_ptr[r]..node_ptr[r + 1]];
                assert!(of_request.is_sorted_by(|a, b| a >= b), "a prefix: {of_request:?}");
            }
        }
    }

    #[test]
    fn trees_stay_closed_under_parents_even_where_survival_underflows() {
        let parents = [-1, 0, 1, 2, -1, 4];
        let (mut s, mut depths) = (Vec::new(), Vec::new());
        survival(&parents, &[0, 6], |_, node, _| if node < 4 { 1e-30 } else { 0.9 }, &mut s, &mut depths);
        assert_eq!(depths, [1, 2, 3, 4, 1, 2]);
        for rows in 0..=6 {
            let mut kept = vec![false; 6];
            // Rows are free up to the given number, then impossible.
            let cost: Vec<f64> = (0..=rows).map(|count| 1.0 / (1.0 + count as f64)).collect();
            allocate(&s, &[true; 6], &mut kept, 1.0, &cost, None, 0.0);
            assert_eq!(kept.iter().filter(|&&k| k).count(), rows);
            for (node, &parent) in parents.iter().enumerate() {
                assert!(!kept[node] || parent < 0 || kept[parent as usize], "{kept:?}");
            }
        }
    }

    #[test]
    fn a_price_keeps_what_is_worth_it_and_no_more() {
        let cost = [10.0, 11.0, 12.0, 13.0];
        let survival = [0.9, 0.4, 0.1];
        let mut kept = [false; 3];
        allocate(&survival, &[true; 3], &mut kept, 1.0, &cost, Some(0.3), 0.0);
        assert_eq!(kept, [true, true, false]);
        let mut kept = [false; 3];
        allocate(&survival, &[true, true, false], &mut kept, 1.0, &cost, Some(0.0), 0.0);
        assert_eq!(kept, [true, true, false], "only open nodes are candidates");
    }
}
