"""What makes tables and figures of papers: experiments and claims, pages of results, and the commands for them."""
