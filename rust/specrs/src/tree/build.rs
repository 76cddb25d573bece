//! Builders: merging drafts, best-first and layered growth, pruning to a budget.

use std::collections::BinaryHeap;

use super::draft_tree::DraftTree;

/// What proposes the children of a node: a head, a small model, a cache.
pub trait Expand {
    /// Adds candidate tokens below `node` of `tree` (−1 is the anchor) with their confidences, the most probable first.
    fn children(&mut self, tree: &DraftTree, node: i32, out: &mut Vec<(u32, f32)>);
}

impl<F: FnMut(&DraftTree, i32, &mut Vec<(u32, f32)>)> Expand for F {
    fn children(&mut self, tree: &DraftTree, node: i32, out: &mut Vec<(u32, f32)>) {
        self(tree, node, out);
    }
}

struct Open {
    path: f32,
    order: u32,
    token: u32,
    parent: i32,
    confidence: f32,
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Open {}
impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Open {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.path.total_cmp(&other.path).then(other.order.cmp(&self.order))
    }
}

/// Grows the tree of the `budget` most probable nodes whose path probability is at least `min_prob`.
///
/// Optimal for the confidences given: a child is never more probable than its parent, so the nodes taken are the most
/// probable ones of the whole infinite tree. Ties go to the candidate seen first.
pub fn best_first(expand: &mut impl Expand, budget: usize, min_prob: f32) -> DraftTree {
    let mut tree = DraftTree::new();
    let mut open = BinaryHeap::new();
    let mut found = Vec::new();
    let mut order = 0;
    let (mut node, mut path) = (-1, 1.0);
    while tree.len() < budget {
        found.clear();
        expand.children(&tree, node, &mut found);
        for &(token, confidence) in &found {
            if path * confidence >= min_prob {
                open.push(Open { path: path * confidence, order, token, parent: node, confidence });
                order += 1;
            }
        }
        let Some(best) = open.pop() else { break };
        node = tree.push(best.token, best.parent, best.confidence);
        path = best.path;
    }
    tree
}

/// Grows layer by layer: at most `widths[d]` nodes at depth `d + 1`, the most probable ones by path.
///
/// One call of a batched drafter can serve a whole layer, which is why drafters with a forward pass per layer grow so.
pub fn layered(expand: &mut impl Expand, widths: &[usize]) -> DraftTree {
    let mut tree = DraftTree::new();
    let mut layer: Vec<(i32, f32)> = vec![(-1, 1.0)];
    let mut found = Vec::new();
    for &width in widths {
        let mut candidates: Vec<Open> = Vec::new();
        for &(node, path) in &layer {
            found.clear();
            expand.children(&tree, node, &mut found);
            for &(token, confidence) in &found {
                let order = candidates.len() as u32;
                candidates.push(Open { path: path * confidence, order, token, parent: node, confidence });
            }
        }
        candidates.sort_by(|a, b| b.cmp(a));
        candidates.truncate(width);
        layer.clear();
        for best in candidates {
            layer.push((tree.push(best.token, best.parent, best.confidence), best.path));
        }
    }
    tree
}

/// Merges drafts: equal paths become one, with the larger confidence.
///
/// Nodes come in the order of the drafts, so the first draft keeps its indices.
pub fn merge(drafts: &[DraftTree]) -> DraftTree {
    let mut merged: Vec<(u32, i32, f32)> = Vec::new();
    for draft in drafts {
        let mut place: Vec<i32> = Vec::with_capacity(draft.len());
        for node in 0..draft.len() {
            let parent = draft.parents()[node];
            let parent = if parent < 0 { -1 } else { place[parent as usize] };
            let (token, confidence) = (draft.tokens()[node], draft.confidence()[node]);
            let known = merged.iter().position(|&(other, above, _)| other == token && above == parent);
            match known {
                Some(at) => merged[at].2 = merged[at].2.max(confidence),
                None => merged.push((token, parent, confidence)),
            }
            place.push(known.unwrap_or(merged.len() - 1) as i32);
        }
    }
    let mut tree = DraftTree::new();
    for (token, parent, confidence) in merged {
        tree.push(token, parent, confidence);
    }
    tree
}

/// Keeps the `budget` nodes of the largest path probability; returns the kept nodes' old indices too.
///
/// A parent is at least as probable as its child and comes earlier, so what is kept is a tree.
pub fn prune(tree: &DraftTree, budget: usize) -> (DraftTree, Vec<i32>) {
    let path = tree.path_probs();
    let mut order: Vec<usize> = (0..tree.len()).collect();
    order.sort_by(|&a, &b| path[b].total_cmp(&path[a]).then(a.cmp(&b)));
    order.truncate(budget);
    order.sort_unstable();
    let mut place = vec![-1; tree.len()];
    let mut kept = DraftTree::new();
    for &node in &order {
        let parent = tree.parents()[node];
        let parent = if parent < 0 { -1 } else { place[parent as usize] };
        place[node] = kept.push(tree.tokens()[node], parent, tree.confidence()[node]);
    }
    (kept, order.into_iter().map(|node| node as i32).collect())
}
