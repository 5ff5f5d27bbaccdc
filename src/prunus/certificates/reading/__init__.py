"""Reading two networks into pieces: what a certificate needs of every operator."""
