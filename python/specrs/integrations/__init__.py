"""Parts of specrs inside engines that have a loop of their own; each module imports its engine when it is used."""
