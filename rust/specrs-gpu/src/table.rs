//! Every kernel with its block size, its dynamic shared memory and its parameters.

use crate::Argument;
use crate::error::GpuError;

/// One kernel as its launcher sees it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The name in the sources and in the fatbin.
    pub name: &'static str,
    /// Threads of a block.
    pub threads: u32,
    /// Most bytes of dynamic shared memory that a launch may ask for.
    pub shared: u32,
    /// One letter per parameter: `P` pointer, `p` pointer that may be null, `i` int32, `l` int64, `f` float.
    pub parameters: &'static str,
}

impl Kernel {
    /// Refuses a launch that the kernel does not take.
    pub(crate) fn check(&self, grid: [u32; 3], shared: u32, arguments: &[Argument]) -> Result<(), GpuError> {
        let invalid = |what: String| Err(GpuError::InvalidLaunch(format!("kernel {}: {what}", self.name)));
        if arguments.len() != self.parameters.len() {
            return invalid(format!("expected {} arguments, got {}", self.parameters.len(), arguments.len()));
        }
        for (index, (&argument, parameter)) in arguments.iter().zip(self.parameters.chars()).enumerate() {
            if argument.letter() != parameter.to_ascii_uppercase() && argument.letter() != parameter {
                return invalid(format!("argument {index} must be of type '{parameter}', got {argument:?}"));
            }
            if parameter == 'P' && argument == Argument::Address(0) {
                return invalid(format!("argument {index} must not be null"));
            }
        }
        if grid.contains(&0) {
            return invalid(format!("a grid must not be empty, got {grid:?}"));
        }
        if shared > self.shared {
            return invalid(format!("at most {} bytes of dynamic shared memory, got {shared}", self.shared));
        }
        Ok(())
    }
}

const fn kernel(name: &'static str, threads: u32, parameters: &'static str) -> Kernel {
    Kernel { name, threads, shared: 0, parameters }
}

/// The kernels of `cuda/kernels`, in the order of `cuda/specrs.cu`.
pub const KERNELS: &[Kernel] = &[
    kernel("row_partials_f32", 256, "PliipipiP"),
    kernel("row_partials_bf16", 256, "PliipipiP"),
    kernel("row_partials_f16", 256, "PliipipiP"),
    kernel("row_summary", 256, "PiipipPPPPP"),
    kernel("row_leaders_f32", 256, "PliipippppPP"),
    kernel("row_leaders_bf16", 256, "PliipippppPP"),
    kernel("row_leaders_f16", 256, "PliipippppPP"),
    kernel("row_law_f32", 256, "PliPiPiPPPPPPPP"),
    kernel("row_law_bf16", 256, "PliPiPiPPPPPPPP"),
    kernel("row_law_f16", 256, "PliPiPiPPPPPPPP"),
    kernel("row_top_k_f32", 256, "PliPPpippPPflPP"),
    kernel("row_top_k_bf16", 256, "PliPPpippPPflPP"),
    kernel("row_top_k_f16", 256, "PliPPpippPPflPP"),
    kernel("round_coins", 256, "PPPPpiiiPP"),
    kernel("draw_rows_f32", 256, "PliPPiPP"),
    kernel("draw_rows_bf16", 256, "PliPPiPP"),
    kernel("draw_rows_f16", 256, "PliPPiPP"),
    kernel("walk_tree", 256, "PPppiiipPPP"),
    kernel("row_probs_f32", 256, "PliPiP"),
    kernel("row_probs_bf16", 256, "PliPiP"),
    kernel("row_probs_f16", 256, "PliPiP"),
    kernel("relaxed_bound_f32", 256, "PliPPPfP"),
    kernel("relaxed_sums_f32", 256, "PliPPiPpiipppiplipffpiP"),
    kernel("relaxed_bound_bf16", 256, "PliPPPfP"),
    kernel("relaxed_sums_bf16", 256, "PliPPiPpiipppiplipffpiP"),
    kernel("relaxed_bound_f16", 256, "PliPPPfP"),
    kernel("relaxed_sums_f16", 256, "PliPPiPpiipppiplipffpiP"),
    kernel("relaxed_choice", 256, "PPiiPpiipppiplipffipPP"),
    kernel("accept_chain_f32", 256, "PliPPpiiipppiplPpppipPP"),
    kernel("accept_chain_bf16", 256, "PliPPpiiipppiplPpppipPP"),
    kernel("accept_chain_f16", 256, "PliPPpiiipppiplPpppipPP"),
    kernel("residual_masses_f32", 256, "PliPPiPpppiP"),
    kernel("residual_masses_bf16", 256, "PliPPiPpppiP"),
    kernel("residual_masses_f16", 256, "PliPPiPpppiP"),
    kernel("residual_draw_f32", 256, "PliPPiPppppiPPPP"),
    kernel("residual_draw_bf16", 256, "PliPPiPppppiPPPP"),
    kernel("residual_draw_f16", 256, "PliPPiPppppiPPPP"),
    kernel("block_sites_f32", 256, "PliPPpiiipppipliP"),
    kernel("block_sites_bf16", 256, "PliPPpiiipppipliP"),
    kernel("block_sites_f16", 256, "PliPPpiiipppipliP"),
    kernel("accept_block", 256, "PiiPiPPipPP"),
    kernel("verify_siblings_f32", 256, "PliPPiPippipppiplPiPipPP"),
    kernel("verify_siblings_bf16", 256, "PliPPiPippipppiplPiPipPP"),
    kernel("verify_siblings_f16", 256, "PliPPiPippipppiplPiPipPP"),
    kernel("select_lengths", 256, "pPiiPifP"),
    kernel("lookup_cache", 256, "piPiP"),
    kernel("commit_cache", 256, "PpiiillliiPlpPii"),
    kernel("advance_lengths", 256, "PpPPii"),
    kernel("write_caches", 256, "PPllllPPPPilii"),
    Kernel { name: "tree_attention_bf16_64", threads: 128, shared: 46_080, parameters: "PpppiiilllppPPPiiifiiilPP" },
    Kernel { name: "tree_attention_bf16_128", threads: 128, shared: 87_040, parameters: "PpppiiilllppPPPiiifiiilPP" },
    Kernel { name: "tree_attention_bf16_256", threads: 128, shared: 101_376, parameters: "PpppiiilllppPPPiiifiiilPP" },
    Kernel { name: "tree_attention_f16_64", threads: 128, shared: 46_080, parameters: "PpppiiilllppPPPiiifiiilPP" },
    Kernel { name: "tree_attention_f16_128", threads: 128, shared: 87_040, parameters: "PpppiiilllppPPPiiifiiilPP" },
    Kernel { name: "tree_attention_f16_256", threads: 128, shared: 101_376, parameters: "PpppiiilllppPPPiiifiiilPP" },
    kernel("tree_attention_plain_f32", 128, "PpppiiilllppPPiPiiiifiilPP"),
    kernel("merge_attention_f32", 256, "PPiliiPiiPp"),
    kernel("tree_attention_plain_bf16", 128, "PpppiiilllppPPiPiiiifiilPP"),
    kernel("merge_attention_bf16", 256, "PPiliiPiiPp"),
    kernel("tree_attention_plain_f16", 128, "PpppiiilllppPPiPiiiifiilPP"),
    kernel("merge_attention_f16", 256, "PPiliiPiiPp"),
    kernel("accept_unmasked", 128, "PPPiiilP"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUP: Kernel = kernel("lookup", 256, "piPif");

    fn refused(grid: [u32; 3], shared: u32, arguments: &[Argument]) -> String {
        LOOKUP.check(grid, shared, arguments).expect_err("a launch that must be refused").to_string()
    }

    #[test]
    fn takes_what_the_parameters_say() {
        use Argument::{Address, F32, I32, I64};
        let good = [Address(0), I32(1), Address(8), I32(2), F32(0.5)];
        assert_eq!(LOOKUP.check([1, 1, 1], 0, &good), Ok(()));
        let mut bad = good;
        bad[2] = Address(0);
        assert!(refused([1, 1, 1], 0, &bad).contains("argument 2 must not be null"));
        bad[2] = I64(8);
        assert!(refused([1, 1, 1], 0, &bad).contains("argument 2 must be of type 'P'"));
        assert!(refused([1, 1, 1], 0, &good[..4]).contains("expected 5 arguments, got 4"));
        assert!(refused([1, 0, 1], 0, &good).contains("must not be empty"));
        assert!(refused([1, 1, 1], 16, &good).contains("at most 0 bytes"));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KERNELS.len());
    }
}
