"""Reading two networks into pieces: what a certificate knows of every operator."""
